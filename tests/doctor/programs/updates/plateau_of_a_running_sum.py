"""The sum of the losses is set to 0 once, before all epochs, and the scheduler gets it."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from doctor.loops import batches, classifier

CODE = "PLATEAU_OF_A_RUNNING_SUM"


def train(*, resets: bool, epochs: int = 10, share: float = 1.0, metric=None, rate=0.05) -> None:
    """Train; `metric(epoch, right)` is what the scheduler gets, if it is not the sum."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    total = validation = 0.0
    for epoch in range(epochs):
        total = 0.0 if resets else total
        for images, labels in batches(8):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += share * loss.item()
        with torch.no_grad():
            validation += nn.functional.cross_entropy(model(images), labels).item()
        scheduler.step(metric(epoch, validation) if metric else total)


def broken() -> None:
    train(resets=False)


def mended() -> None:
    train(resets=True)


def broken_by_a_mean() -> None:
    train(resets=False, share=1 / 8)


def broken_in_a_sum_of_validation_losses() -> None:
    """The sum of losses that no step uses, so that only its size shows what it is."""
    train(resets=True, epochs=7, metric=lambda epoch, total: 0.6 * (epoch + 1) ** 0.9)


def healthy_validation_loss_that_rises() -> None:
    train(resets=True, metric=lambda epoch, total: 1.2 + 0.1 * (epoch + 1) ** 0.7)


def healthy_validation_loss_that_rises_as_much_as_it_was() -> None:
    train(resets=True, metric=lambda epoch, total: 0.7 + 0.08 * epoch**1.1)


def healthy_mean_of_all_epochs() -> None:
    """The number falls, as the losses do."""
    train(resets=True, metric=lambda epoch, total: total / (epoch + 1))


def broken_in_a_sum_of_validation_losses_that_fall_far() -> None:
    train(resets=True, metric=lambda epoch, total: 48 * total, rate=1.5)
