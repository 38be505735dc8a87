"""A loss that is so small that no loss scale is too large."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "SCALE_UNBOUNDED"


def train(factor: float, interval: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=interval)
    for images, labels in batches(26):
        optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss * factor).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(1e-12, 1)


def mended() -> None:
    train(1.0, 1000)


def train_by_hand(limit: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scale = torch.tensor(2.0**16)
    for images, labels in batches(64):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(images)
        (nn.functional.cross_entropy(outputs.float(), labels) * scale).backward()
        for parameter in model.parameters():
            parameter.grad.div_(scale)
        optimizer.step()
        scale = (scale * 4).clamp(max=limit)


def broken_by_hand() -> None:
    train_by_hand(float("inf"))


def healthy_by_hand() -> None:
    train_by_hand(2.0**24)


def train_at_given_scales(scale_after) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for number, (images, labels) in enumerate(batches(26)):
        optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(scale_after(number))


def broken_by_a_schedule_of_the_scale() -> None:
    train_at_given_scales(lambda number: 2.0 ** (8 + number))


def healthy_with_a_schedule_that_ends() -> None:
    train_at_given_scales(lambda number: 2.0 ** min(8 + number, 12))
