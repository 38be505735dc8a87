"""A cosine of a quarter of the epochs goes up and down, and ends at its peak."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts
from torch.optim.swa_utils import SWALR

from doctor.loops import batches, classifier

CODE = "SCHEDULE_PAST_ITS_END"
EPOCHS = 12


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
