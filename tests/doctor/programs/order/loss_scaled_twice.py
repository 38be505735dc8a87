"""The loop scales the loss, and scales the result again before its backward pass."""

import torch

from doctor.loops import batches, classifier, loss_of

CODE = "LOSS_SCALED_TWICE"


def train(*, twice: bool, parts: bool = False) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        loss = loss_of(model, images, labels)
        if twice:
            loss = scaler.scale(loss)
        if parts:
            loss = loss + 0.01 * loss_of(model, images + 1, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(twice=True)


def mended() -> None:
    train(twice=False)


def broken_in_one_part_of_the_loss() -> None:
    train(twice=True, parts=True)


def healthy_after_a_division_by_the_scale() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        loss = scaler.scale(loss_of(model, images, labels)) / scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
