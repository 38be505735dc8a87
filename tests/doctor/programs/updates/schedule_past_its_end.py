"""A cosine of a quarter of the epochs goes up and down, and ends at its peak."""

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LambdaLR
from torch.optim.swa_utils import SWALR

from doctor.loops import batches, classifier

CODE = "SCHEDULE_PAST_ITS_END"
EPOCHS = 12


class Noisy:
    """Predict a mean of noisy values: the larger the rate, the larger the error."""

    def __init__(self, rate: float = 0.9) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)

    def step(self) -> None:
        values = 3 + torch.randn(2, 1)
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(torch.ones(2, 1)), values).backward()
        self.optimizer.step()


def train_by_power(length: int, *, floor: bool = False, rate: float = 0.45) -> None:
    task = Noisy(rate)

    def share(step: int) -> float:
        left = 1 - step / length
        return max(0.1, left) ** 2 if floor else left**2

    scheduler = LambdaLR(task.optimizer, share)
    for _ in range(80):
        task.step()
        scheduler.step()


def train_by_hand(rate_of) -> None:
    task = Noisy()
    for step in range(80):
        task.optimizer.param_groups[0]["lr"] = rate_of(step / 80)
        task.step()


def broken_power_of_the_share_that_is_left() -> None:
    train_by_power(40)


def broken_cosine_by_hand() -> None:
    train_by_hand(lambda share: 0.23 * (1 + math.cos(math.pi * share / 0.5)))


def train_by_line(length: int, lowest: float = -math.inf) -> None:
    task = Noisy(0.02)
    scheduler = LambdaLR(task.optimizer, lambda step: max(lowest, 1 - step / length))
    for _ in range(80):
        task.step()
        scheduler.step()


def broken_line_below_zero() -> None:
    train_by_line(40)


def broken_line_below_zero_by_hand() -> None:
    train_by_hand(lambda share: 0.05 * (0.6 - share))


def healthy_line_that_ends_at_zero() -> None:
    train_by_line(80)


def healthy_line_above_zero() -> None:
    train_by_line(60, lowest=0.01)


def healthy_power() -> None:
    train_by_power(81)


def healthy_power_that_stays_at_its_end() -> None:
    train_by_power(40, floor=True)


def healthy_restart_by_hand() -> None:
    train_by_hand(lambda share: 0.23 * (1 + math.cos(math.pi * (2 * share % 1))))


def healthy_cycles_by_hand() -> None:
    train_by_hand(lambda share: 0.23 * (1 + math.cos(math.pi * share * 6)))


def healthy_warm_up_and_cosine_by_hand() -> None:
    train_by_hand(lambda share: 0.23 * min(1, 10 * share) * (1 + math.cos(math.pi * share)))


def train_well(rate_of) -> None:
    """Train a task without noise, whose loss falls at each rate."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step, (images, _) in enumerate(batches(40)):
        optimizer.param_groups[0]["lr"] = rate_of(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(images), images.sum(1, keepdim=True)).backward()
        optimizer.step()


def broken_cosine_while_the_loss_falls() -> None:
    train_well(lambda step: 0.01 * (1 + math.cos(math.pi * step / 20)))


def healthy_second_stage_with_a_warm_up() -> None:
    def rate_of(step: int) -> float:
        first = 0.01 * (1 + math.cos(math.pi * step / 20))
        return first if step <= 20 else 0.02 * min(1, (step - 20) / 8)

    train_well(rate_of)


def healthy_triangles() -> None:
    train_well(lambda step: 0.001 + 0.002 * abs(step % 20 - 10))


def train(make, *, each: int = 4, then=None) -> None:
    """Train; the scheduler moves after `each` steps, and `then(optimizer)` takes over."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = make(optimizer)
    other = then and then(optimizer)
    for epoch in range(EPOCHS):
        for images, labels in batches(each, seed=epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        (other if other and epoch > 9 else scheduler).step()


def broken() -> None:
    train(lambda optimizer: CosineAnnealingLR(optimizer, T_max=3))


def mended() -> None:
    train(lambda optimizer: CosineAnnealingLR(optimizer, T_max=12))


def broken_with_a_length_of_half_the_run() -> None:
    train(lambda optimizer: CosineAnnealingLR(optimizer, EPOCHS // 2, 1e-4))


def healthy_end_at_the_lowest_rate() -> None:
    train(lambda optimizer: CosineAnnealingLR(optimizer, T_max=4))


def healthy_restarts() -> None:
    train(lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 5))


def healthy_averaging_takes_over() -> None:
    train(
        lambda optimizer: CosineAnnealingLR(optimizer, T_max=5),
        then=lambda optimizer: SWALR(optimizer, swa_lr=0.04, anneal_epochs=1),
    )
