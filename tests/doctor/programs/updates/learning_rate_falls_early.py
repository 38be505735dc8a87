"""StepLR is meant to advance once an epoch, and advances after each batch."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from doctor.loops import batches, classifier

CODE = "LEARNING_RATE_FALLS_EARLY"
EPOCHS, BATCHES = 6, 10


def train(*, each_batch: bool, make=None, rate: float = 0.02) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    lr_scheduler = torch.optim.lr_scheduler
    scheduler = make(optimizer) if make else lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    for epoch in range(EPOCHS):
        for images, labels in batches(BATCHES, seed=epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if each_batch:
                scheduler.step()
        if not each_batch:
            scheduler.step()


def broken() -> None:
    train(each_batch=True)


def mended() -> None:
    train(each_batch=False)


def broken_after_it_has_learned_a_little() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.6)
    for images, labels in batches(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        scheduler.step()


def broken_exponential() -> None:
    train(each_batch=True, make=lambda each: torch.optim.lr_scheduler.ExponentialLR(each, 0.5))


def train_by_hand(rate_of, *, count: int = 80) -> None:
    """Train at the rate that `rate_of(step)` returns before each step."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (images, labels) in enumerate(batches(count)):
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def half_cosine(rate: float, length: int, floor: float = 1e-3):
    def rate_of(step: int) -> float:
        share = min(1.0, step / length)
        return rate * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * share)))

    return rate_of


def broken_by_hand() -> None:
    train_by_hand(half_cosine(0.3, 10))


def healthy_by_hand() -> None:
    train_by_hand(half_cosine(0.3, 80))


def healthy_floor_by_hand() -> None:
    """A rate that rests at a tenth of its peak."""
    train_by_hand(half_cosine(0.3, 10, 0.1))


def healthy_second_phase_by_hand() -> None:
    train_by_hand(lambda step: 0.3 if step < 15 else 3e-4)


def healthy_learned_before_the_rate_fell_by_hand() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    rate_of = half_cosine(0.3, 20)
    for step, (images, _) in enumerate(batches(100)):
        optimizer.param_groups[0]["lr"] = rate_of(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(images), images.sum(1, keepdim=True)).backward()
        optimizer.step()


def healthy_cosine_over_all_steps() -> None:
    def make(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * BATCHES)

    train(each_batch=True, make=make)


def healthy_warm_up_from_almost_zero() -> None:
    def make(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, 1e-4 + step / 40))

    train(each_batch=True, make=make)


def healthy_learned_before_the_rate_fell() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [20], gamma=1e-4)
    for images, _ in batches(100):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(images), images.sum(1, keepdim=True)).backward()
        optimizer.step()
        scheduler.step()


def healthy_after_a_restart() -> None:
    def make(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)

    train(each_batch=True, make=make)


def broken_in_a_long_run() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    for images, labels in batches(600):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        scheduler.step()


def healthy_on_a_plateau() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    scheduler = plateau(optimizer, factor=1e-3, patience=0, eps=0)
    for images, _ in batches(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), torch.randint(3, (8,)))
        loss.backward()
        optimizer.step()
        scheduler.step(1.0)


def healthy_frozen_after_a_while() -> None:
    def make(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step < 5))

    train(each_batch=True, make=make, rate=1e-5)


def broken_cosine_that_swings() -> None:
    """A cosine over the epochs advances with each batch, so the rate rises and falls again."""

    def make(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

    train(each_batch=True, make=make)


def healthy_restarts_that_are_named() -> None:
    def make(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)

    train(each_batch=True, make=make)


def healthy_cosine_that_goes_on_a_little() -> None:
    def make(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * BATCHES - 5)

    train(each_batch=True, make=make)


def train_with_milestones(*lengths: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [*lengths], gamma=0.1)
    for images, labels in batches(80):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        scheduler.step()


def broken_by_milestones_in_epochs() -> None:
    train_with_milestones(2, 3, 5, 8)


def healthy_milestones_in_steps() -> None:
    train_with_milestones(30, 45, 60, 75)


def train_with_loader(*milestones: int, each_batch: bool, epochs: int = EPOCHS) -> None:
    images = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(images, images.sum(1, keepdim=True)), 2)
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [*milestones], gamma=0.1)
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            if each_batch:
                scheduler.step()
        if not each_batch:
            scheduler.step()


def broken_by_two_milestones_in_epochs() -> None:
    train_with_loader(4, 5, each_batch=True)


def healthy_milestones_after_each_epoch() -> None:
    train_with_loader(4, 5, each_batch=False)


def healthy_milestones_of_steps() -> None:
    train_with_loader(72, 108, each_batch=True)


def healthy_large_rate_in_the_first_steps() -> None:
    """The rate falls after more steps than there are epochs."""
    train_with_loader(12, each_batch=True)


def broken_in_almost_half_of_the_steps() -> None:
    train(each_batch=True, make=lambda each: torch.optim.lr_scheduler.ExponentialLR(each, 0.76))


def healthy_exponential_to_a_thousandth() -> None:
    train(each_batch=True, make=lambda each: torch.optim.lr_scheduler.ExponentialLR(each, 0.89))
