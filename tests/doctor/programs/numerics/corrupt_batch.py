"""One sample of one batch is NaN."""

import torch

from doctor.loops import batches, classifier, loss_of

CODE = "CORRUPT_BATCH"


def train(*, corrupt: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (images, labels) in enumerate(batches(4)):
        if corrupt and number == 2:
            images[3, 1] = float("nan")
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(corrupt=True)


def mended() -> None:
    train(corrupt=False)


def broken_before_the_loop_normalises_it() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (images, labels) in enumerate(batches(4)):
        if number == 2:
            images[3, 1] = float("nan")
        normalised = (images - images.mean(0)) / (images.std(0) + 1e-6)
        optimizer.zero_grad()
        scaler.scale(loss_of(model, normalised, labels)).backward()
        scaler.step(optimizer)
        scaler.update()
