"""A loop that unscales and clips the gradients after `scaler.step()`."""

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "UNSCALED_AFTER_STEP"


def train(*, late: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        if late:
            scaler.step(optimizer)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not late:
            scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(late=True)


def mended() -> None:
    train(late=False)
