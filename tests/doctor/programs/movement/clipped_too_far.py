"""Gradients are clipped to a norm of 1e-5."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "CLIPPED_TOO_FAR"


def train(limit: float, *, make=lambda weights: torch.optim.SGD(weights, lr=0.05)) -> None:
    model = classifier()
    optimizer = make(model.parameters())
    for images, labels in batches(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()


def broken() -> None:
    train(1e-5)


def mended() -> None:
    train(1.0)


def broken_with_momentum() -> None:
    train(1e-6, make=lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9))


def healthy_adam() -> None:
    """Adam divides by the size of the gradients."""
    train(1e-4, make=lambda weights: torch.optim.Adam(weights, lr=0.01))


def healthy_high_rate() -> None:
    """The rate makes up for the clipping: the gradients are normalized."""
    train(1e-4, make=lambda weights: torch.optim.SGD(weights, lr=1000.0))


def healthy_low_limit() -> None:
    train(0.1)


def healthy_limit_that_is_rarely_reached() -> None:
    train(5.0)
