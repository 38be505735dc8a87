"""A schedule that ends after 40 steps, in a loop of 400."""

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    PolynomialLR,
    SequentialLR,
    StepLR,
)

from doctor.loops import batches, classifier

CODE = "LEARNING_RATE_ZERO"


def train(make, *, count: int = 80, each_epoch: int = 0, rate: float = 0.02) -> None:
    """Train; `make(optimizer)` returns a scheduler, or a function of the step, or None."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    scheduler = make(optimizer)
    for number, (images, labels) in enumerate(batches(count)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if callable(scheduler):
            optimizer.param_groups[0]["lr"] = rate * scheduler(number + 1)
        elif each_epoch == 0 or number % each_epoch == each_epoch - 1:
            scheduler.step()


def linear(end: int):
    return lambda optimizer: LambdaLR(optimizer, lambda step: max(0.0, 1 - step / end))


def broken() -> None:
    train(linear(40), count=400)


def mended() -> None:
    train(linear(400), count=400)


def broken_by_a_polynomial() -> None:
    train(lambda optimizer: PolynomialLR(optimizer, total_iters=10, power=2.0))


def broken_by_hand() -> None:
    train(lambda optimizer: lambda step: max(0.0, 1 - step / 20))


def broken_by_a_division_of_whole_numbers() -> None:
    """The warm-up divides with `//`, so the rate stays 0 until it ends."""
    train(lambda optimizer: LambdaLR(optimizer, lambda step: min(1, step // 100)), count=60)


def broken_factor_of_zero() -> None:
    train(lambda optimizer: StepLR(optimizer, 40, gamma=0))


class Wrapped(torch.optim.Optimizer):
    """An optimizer around another one, as Accelerate makes it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, closure=None):
        return self.optimizer.step(closure)


def broken_schedule_of_a_wrapped_optimizer() -> None:
    train(lambda optimizer: StepLR(Wrapped(optimizer), 40, gamma=0))


def healthy_steps_to_a_tenth() -> None:
    train(lambda optimizer: StepLR(optimizer, 40))


def healthy_warm_up_from_zero() -> None:
    train(lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, step / 20)))


def healthy_cosine_to_zero() -> None:
    train(lambda optimizer: CosineAnnealingLR(optimizer, T_max=80))


def healthy_warm_up_and_cosine() -> None:
    def make(optimizer):
        warm = LinearLR(optimizer, 1e-6, total_iters=10)
        return SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, 70)], [10])

    train(make)


def healthy_restarts() -> None:
    train(lambda optimizer: lambda step: 0.5 * (1 + math.cos(math.pi * (step % 10) / 10)))


def healthy_few_steps_after_the_end() -> None:
    train(linear(72))


def healthy_group_that_stays_at_zero() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(6, 16), nn.Linear(16, 3)
    groups = [{"params": body.parameters(), "lr": 0.0}, {"params": head.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.05)
    for images, labels in batches(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(body(images).relu()), labels).backward()
        optimizer.step()


def healthy_optimizer_that_rests_while_another_moves() -> None:
    """An adversarial loop that first trains one side alone."""
    torch.manual_seed(0)
    body, head = nn.Linear(6, 16), nn.Linear(16, 3)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (body, head)]
    for number, (images, labels) in enumerate(batches(40)):
        optimizers[0].param_groups[0]["lr"] = 0.0 if number < 30 else 0.05
        for each in optimizers:
            each.zero_grad()
        nn.functional.cross_entropy(head(body(images).relu()), labels).backward()
        for each in optimizers:
            each.step()


def healthy_gradients_that_are_only_measured() -> None:
    """A study of gradients with an optimizer that must not change the model."""
    train(lambda optimizer: LambdaLR(optimizer, lambda step: 1.0), rate=0.0, count=30)


def train_groups(rates, after) -> None:
    """Two groups with these rates; `after(optimizer)` runs before each step."""
    model = classifier()
    groups = [{"params": model[0].parameters()}, {"params": model[1:].parameters()}]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    optimizer = torch.optim.SGD(groups)
    for images, labels in batches(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        after(optimizer)
        optimizer.step()


def broken_rate_of_one_group() -> None:
    def after(optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.0

    train_groups((0.1, 0.1), after)


def broken_factor_of_one_group() -> None:
    def after(optimizer) -> None:
        for group, factor in zip(optimizer.param_groups, (0, 1), strict=True):
            group["lr"] = 0.1 * factor

    train_groups((0.1, 0.1), after)


def healthy_group_that_is_kept() -> None:
    train_groups((0.0, 0.1), lambda optimizer: None)


def healthy_group_that_begins_later() -> None:
    count = [0]

    def after(optimizer) -> None:
        count[0] += 1
        optimizer.param_groups[0]["lr"] = 0.0 if count[0] < 8 else 0.1

    train_groups((0.1, 0.1), after)
