"""A gradient scaler that raises its loss scale after each step without an overflow."""

import torch
from torch import nn

from doctor.loops import batches, loss_of

CODE = "SCALE_GROWS_TOO_SOON"


def train(interval: int, *, steps: int = 24, start: float = 2.0**16) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=start, growth_interval=interval)
    for images, labels in batches(steps):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images * 20, labels)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(1)


def mended() -> None:
    train(2000)


def broken_with_an_interval_of_three() -> None:
    train(3, steps=40)


def healthy_growth_from_a_low_scale() -> None:
    train(1, steps=8, start=1.0)


def healthy_with_bad_batches() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
    for number, (images, labels) in enumerate(batches(60)):
        optimizer.zero_grad()
        loss = loss_of(model, images, labels)
        if number % 8 != 7:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def train_by_hand(*, begins_anew: bool, start: float = 2.0**14) -> None:
    """Train with a loss scale of the loop's own, which grows after eight steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scale, clean = start, 0
    for images, labels in batches(60):
        optimizer.zero_grad()
        (loss_of(model, images, labels) * scale).backward()
        gradients = [each.grad for each in model.parameters()]
        if not all(each.isfinite().all() for each in gradients):
            scale, clean = scale / 2, 0 if begins_anew else clean
            continue
        for each in gradients:
            each.div_(scale)
        optimizer.step()
        clean += 1
        if clean >= (40 if begins_anew else 8):
            scale, clean = scale * 2, 0 if begins_anew else clean


def broken_by_hand() -> None:
    train_by_hand(begins_anew=False)


def healthy_by_hand() -> None:
    train_by_hand(begins_anew=True)


def healthy_by_hand_from_a_scale_that_is_too_high() -> None:
    train_by_hand(begins_anew=True, start=2.0**30)


def healthy_weight_by_the_number_of_tokens() -> None:
    """The loss is a sum over the tokens of a batch, of which each has another number."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, labels) in enumerate(batches(24)):
        count = 2 + number * 5 % 7
        loss = nn.functional.cross_entropy(model(images[:count]), labels[:count], reduction="sum")
        weight = 100 / count
        (loss * weight).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
