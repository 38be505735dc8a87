"""A step that unscales its gradients before clipping, and again after it."""

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "UNSCALED_TWICE"


def train(*, again: bool, window: int = 1) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for number, (images, labels) in enumerate(batches(6)):
        scaler.scale(loss_of(model, images, labels)).backward()
        if (number + 1) % window == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if again:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def broken() -> None:
    train(again=True)


def mended() -> None:
    train(again=False)


def broken_at_the_end_of_a_window() -> None:
    train(again=True, window=2)


def train_by_hand(*, call: bool, first: bool = False, divisor=None) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for images, labels in batches(6):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        if first:
            scaler.unscale_(optimizer)
        factor = 1 / (divisor or scaler.get_scale())
        for each in model.parameters():
            each.grad.mul_(factor)
        if call:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def broken_by_a_division_before_the_step() -> None:
    train_by_hand(call=False)


def broken_by_a_division_before_unscale() -> None:
    train_by_hand(call=True)


def broken_by_a_division_after_unscale() -> None:
    train_by_hand(call=False, first=True)


def healthy_mean_over_micro_batches_after_unscale() -> None:
    train_by_hand(call=False, first=True, divisor=4.0)
