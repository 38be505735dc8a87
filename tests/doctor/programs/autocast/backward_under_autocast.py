"""The backward pass in the autocast block of the forward pass."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier, half_autocast

CODE = "BACKWARD_UNDER_AUTOCAST"


def train(*, inside: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = functional.cross_entropy(model(images), labels)
            if inside:
                scaler.scale(loss).backward()
        if not inside:
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(inside=True)


def mended() -> None:
    train(inside=False)
