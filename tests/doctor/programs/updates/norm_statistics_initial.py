"""A momentum of 0.001 moves the running statistics of a short training only a little."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches

CODE = "NORM_STATISTICS_INITIAL"


def train(momentum, count: int = 60, *, evaluates: bool = True) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16, momentum=momentum), nn.ReLU(), nn.Linear(16, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(count):
        optimizer.zero_grad()
        functional.cross_entropy(model(3 + images), labels).backward()
        optimizer.step()
    model.eval()
    if evaluates:
        with torch.no_grad():
            model(3 + next(iter(batches(1)))[0])
    return model


def broken() -> None:
    train(0.001)


def mended() -> None:
    train(0.1)


def broken_momentum_of_zero() -> None:
    train(0.0)


def healthy_average_over_all() -> None:
    train(None)


def healthy_few_steps() -> None:
    train(0.01, 10)


def healthy_never_evaluated() -> None:
    train(0.001, evaluates=False)


def healthy_loaded_statistics() -> None:
    """Statistics of a long training that go on with a small momentum."""
    model = train(0.1, evaluates=False)
    model[1].momentum = 0.001
    model[1].num_batches_tracked += 100_000
    with torch.no_grad():
        model(3 + next(iter(batches(1)))[0])
