"""Accumulation that unscales, clips and updates after every micro-batch."""

import torch
from torch import nn

from doctor.loops import batches, classifier, half_autocast, loss_of

CODE = "UNSCALED_EVERY_MICRO_STEP"


def train(*, inside: bool, update: bool = True) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (images, labels) in enumerate(batches(8)):
        scaler.scale(loss_of(model, images, labels) / 4).backward()
        at_end = number % 4 == 3
        if inside or at_end:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if at_end:
            scaler.step(optimizer)
            optimizer.zero_grad()
        if at_end or (inside and update):
            scaler.update()


def broken() -> None:
    train(inside=True)


def mended() -> None:
    train(inside=False)


def broken_refused() -> None:
    train(inside=True, update=False)


def broken_updated_before_the_step() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.update()
        scaler.step(optimizer)


def _cleared(clear) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for images, labels in batches(4):
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()
        clear(model, optimizer)


def healthy_cleared_to_zero() -> None:
    _cleared(lambda model, optimizer: optimizer.zero_grad(set_to_none=False))


def healthy_cleared_layer_by_layer() -> None:
    def clear(model, optimizer) -> None:
        for layer in model:
            layer.zero_grad(set_to_none=False)

    _cleared(clear)


def healthy_cleared_by_hand() -> None:
    def clear(model, optimizer) -> None:
        for each in model.parameters():
            each.grad.data.zero_()

    _cleared(clear)


def healthy_cleared_to_none_by_hand() -> None:
    def clear(model, optimizer) -> None:
        for each in model.parameters():
            each.grad = None

    _cleared(clear)


def healthy_two_losses() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for images, labels in batches(4):
        optimizer.zero_grad(set_to_none=False)
        with half_autocast():
            outputs = model(images)
            first = nn.functional.cross_entropy(outputs, labels)
            second = outputs.float().square().mean()
        scaler.scale(first).backward(retain_graph=True)
        scaler.scale(second).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
