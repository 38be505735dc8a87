"""A scheduler advances with each micro-step of an accumulation, and not with each step."""

import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    OneCycleLR,
    PolynomialLR,
)

from doctor.loops import batches, classifier

CODE = "SCHEDULE_PER_MICRO_STEP"
PARTS = 4
STEPS = 12


def train(make, *, often: bool, scaled: bool = False) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = make(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, enabled=scaled)
    for number, (images, labels) in enumerate(batches(PARTS * STEPS)):
        loss = nn.functional.cross_entropy(model(images), labels) / PARTS
        scaler.scale(loss).backward()
        is_due = number % PARTS == PARTS - 1
        if is_due:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if is_due or often:
            scheduler.step()


def cosine(optimizer):
    return CosineAnnealingLR(optimizer, STEPS)


def broken() -> None:
    train(cosine, often=True)


def mended() -> None:
    train(cosine, often=False)


def broken_with_a_scaler() -> None:
    train(cosine, often=True, scaled=True)


def broken_until_the_rate_is_zero() -> None:
    train(lambda each: LambdaLR(each, lambda step: max(0.0, 1 - step / STEPS)), often=True)


def down_to_a_hundredth(steps: int):
    return lambda each: LambdaLR(each, lambda step: 0.01 + 0.99 * max(0.0, 1 - step / steps))


def broken_until_the_rate_stays_low() -> None:
    train(down_to_a_hundredth(STEPS), often=True)


def healthy_function_in_micro_steps() -> None:
    train(down_to_a_hundredth(PARTS * STEPS), often=True)


def healthy_warm_up_in_micro_steps() -> None:
    train(lambda each: LambdaLR(each, lambda step: min(1.0, (step + 1) / 4)), often=True)


def broken_with_a_polynomial() -> None:
    train(lambda each: PolynomialLR(each, total_iters=STEPS), often=True)


def train_exponentially(gamma: float, *, often: bool, steps: int = 40, rate: float = 0.02) -> None:
    """Train with a schedule without a length."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    scheduler = ExponentialLR(optimizer, gamma)
    for number, (images, labels) in enumerate(batches(PARTS * steps)):
        (nn.functional.cross_entropy(model(images), labels) / PARTS).backward()
        is_due = number % PARTS == PARTS - 1
        if is_due:
            optimizer.step()
            optimizer.zero_grad()
        if is_due or often:
            scheduler.step()


def broken_without_a_length() -> None:
    train_exponentially(0.92, often=True)


def healthy_decay_per_step() -> None:
    train_exponentially(0.92, often=False)


def healthy_decay_for_micro_steps() -> None:
    """The rate is chosen for micro-steps, and becomes small at the end."""
    train_exponentially(0.98, often=True)


def healthy_length_in_micro_steps() -> None:
    """The schedule counts batches, and its length is their number."""
    train(lambda each: OneCycleLR(each, 0.05, total_steps=PARTS * STEPS + 1), often=True)


def healthy_length_in_micro_steps_of_a_cosine() -> None:
    train(lambda each: CosineAnnealingLR(each, PARTS * STEPS), often=True)


def healthy_two_schedulers() -> None:
    """Each of them advances once in each step."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedulers = [
        LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5)),
        CosineAnnealingLR(optimizer, STEPS),
    ]
    for images, labels in batches(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        for each in schedulers:
            each.step()
