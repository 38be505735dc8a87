"""A loop that skips both a step and the scaler's update."""

import contextlib

import torch
from torch import nn

from doctor.loops import batches, classifier, loss_of

CODE = "UPDATE_SKIPPED"


def train(*, always: bool) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (images, labels) in enumerate(batches(5)):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if number != 2 and norm < 1e4:
            scaler.step(optimizer)
        elif not always:
            continue
        scaler.update()


def broken() -> None:
    train(always=False)


def mended() -> None:
    train(always=True)


def broken_and_goes_on() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for number, (images, labels) in enumerate(batches(6)):
        scaler.scale(loss_of(model, images, labels)).backward()
        with contextlib.suppress(RuntimeError):
            scaler.unscale_(optimizer)
            if number != 2:
                scaler.step(optimizer)
                scaler.update()
        optimizer.zero_grad()


def broken_never_updated() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)


def healthy_skips_before_unscaling() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for number, (images, labels) in enumerate(batches(6)):
        optimizer.zero_grad()
        loss = loss_of(model, images, labels)
        if number == 3:
            continue
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def broken_by_an_update_before_the_step() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.unscale_(optimizer)
        scaler.update()
        scaler.step(optimizer)
