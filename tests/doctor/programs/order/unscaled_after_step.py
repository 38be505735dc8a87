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


def train_after_update(*, late: bool, clears: bool = False) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(4):
        scaler.scale(loss_of(model, images, labels)).backward()
        if not late:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if late:
            scaler.unscale_(optimizer)
            nn.utils.get_total_norm([each.grad for each in model.parameters()])
        optimizer.zero_grad()


def broken_after_the_update() -> None:
    train_after_update(late=True)


def healthy_before_the_step() -> None:
    train_after_update(late=False)


def healthy_with_another_backward_for_the_norm() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
