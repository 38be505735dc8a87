"""StepLR is meant to advance once an epoch, and advances after each batch."""

import torch
from torch import nn

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
