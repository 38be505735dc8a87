"""A loss that is inf at any loss scale: the fourth power of large numbers."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "SCALE_COLLAPSED"


def train(*, bounded: bool, count: int = 10) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, _ in batches(count):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images).float()
            loss = (outputs.tanh() if bounded else outputs * 1e12).pow(4).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(bounded=False)


def mended() -> None:
    train(bounded=True)


def train_by_hand(*, bounded: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scale = 64.0
    for images, _ in batches(10):
        outputs = model(images)
        loss = (outputs.tanh() if bounded else outputs * 1e12).pow(4).mean() * scale
        optimizer.zero_grad()
        loss.backward()
        if all(each.grad.isfinite().all() for each in model.parameters()):
            for each in model.parameters():
                each.grad /= scale
            optimizer.step()
        else:
            scale /= 2


def broken_by_hand() -> None:
    train_by_hand(bounded=False)


def healthy_by_hand() -> None:
    train_by_hand(bounded=True)


def broken_by_a_gradient_above_the_maximum_of_fp16() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, _ in batches(10):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images)
        scaler.scale(1e6 * outputs.float().square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_by_a_hook_that_is_not_repeated() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(10):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images)
        outputs.register_hook(lambda gradient: gradient / 0)
        scaler.scale(nn.functional.cross_entropy(outputs.float(), labels)).backward()
        scaler.step(optimizer)
        scaler.update()
