"""A second optimizer step after the scaler's."""

import torch

from doctor.loops import batches, classifier, loss_of

CODE = "STEP_BYPASSES_SCALER"


def train(*, doubled: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        if doubled:
            optimizer.step()
        scaler.update()


def broken() -> None:
    train(doubled=True)


def mended() -> None:
    train(doubled=False)
