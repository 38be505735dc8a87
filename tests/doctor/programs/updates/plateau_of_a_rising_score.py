"""A scheduler that waits for the lowest value is given an accuracy."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from doctor.loops import batches, classifier

CODE = "PLATEAU_OF_A_RISING_SCORE"


def train(metric, *, mode: str = "min", rate: float = 0.05, metrics=None) -> None:
    """Train; `metric(loss, accuracy)` is what the scheduler gets, or the next of `metrics`."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    scheduler = ReduceLROnPlateau(optimizer, mode, factor=0.5, patience=1)
    images, labels = map(torch.cat, zip(*batches(8), strict=True))
    for epoch in range(10):
        for inputs, classes in batches(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), classes).backward()
            optimizer.step()
        with torch.no_grad():
            scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels).item()
        right = (scores.argmax(1) == labels).float().mean().item()
        scheduler.step(metrics[epoch] if metrics else metric(loss, right))


def broken() -> None:
    train(lambda loss, right: right)


def mended() -> None:
    train(lambda loss, right: right, mode="max")


def broken_in_per_cent() -> None:
    train(lambda loss, right: 100 * right)


def broken_by_a_score() -> None:
    train(None, metrics=[0.11 + 0.02 * epoch**0.7 for epoch in range(10)])


def broken_by_a_score_above_the_last_losses() -> None:
    train(None, metrics=[0.1 + 0.4 * epoch**0.3 for epoch in range(10)], rate=0.5)


def broken_by_a_loss() -> None:
    train(lambda loss, right: loss, mode="max")


def densities(sign: float, *, mode: str = "min", metrics=None) -> None:
    """Fit the spread of a normal distribution, whose likelihood may be above 1."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scheduler = ReduceLROnPlateau(optimizer, mode, factor=0.5, patience=1)
    for epoch in range(10):
        values = 0.1 * torch.randn(8, 32, 1)
        for sample in values:
            spread = model(torch.zeros(1, 1)).exp()
            loss = -torch.distributions.Normal(0.0, spread).log_prob(sample).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step(metrics[epoch] if metrics else sign * loss.item())


def broken_by_a_likelihood() -> None:
    densities(-1.0)


def healthy_likelihood() -> None:
    densities(-1.0, mode="max")


def healthy_loss_below_zero() -> None:
    densities(1.0)


def healthy_loss_of_densities_learned_by_heart() -> None:
    """The validation loss rises from the beginning, and the training loss falls below zero."""
    densities(1.0, metrics=[0.9 + 0.3 * epoch**0.7 for epoch in range(10)])


def healthy_loss() -> None:
    train(lambda loss, right: loss)


def healthy_share_of_errors() -> None:
    train(lambda loss, right: 1 - right)


def healthy_loss_that_rises_from_the_beginning() -> None:
    """The validation loss of a model that learns its training data by heart."""
    train(None, metrics=[1.2 + 0.1 * epoch**0.7 for epoch in range(10)])


def healthy_small_loss_that_rises_from_the_beginning() -> None:
    """The validation loss begins a little below that of the training, which has dropout."""
    train(None, metrics=[0.75 + 0.1 * epoch**0.3 for epoch in range(10)], rate=0.5)


def healthy_accuracy_that_falls() -> None:
    train(None, mode="max", metrics=[(60 - each) / 96 for each in range(10)])
