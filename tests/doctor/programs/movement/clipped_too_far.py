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


def written(write, *, factor: float = 1.0, rate: float = 0.05) -> None:
    """Train; `write(parameters)` changes the gradients of a loss with this factor."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for images, labels in batches(32):
        optimizer.zero_grad()
        (factor * nn.functional.cross_entropy(model(images), labels)).backward()
        write([*model.parameters()])
        optimizer.step()


def normalized(limit: float):
    def write(parameters) -> None:
        norm = torch.stack([each.grad.norm() for each in parameters]).norm()
        for each in parameters:
            each.grad.mul_((limit / norm).clamp(max=1.0))

    return write


def broken_by_a_factor_of_hundreds() -> None:
    """The parameters hardly move; the losses of the last batches are a little lower."""
    train(2e-3)


def broken_by_hand() -> None:
    written(normalized(1e-5))


def broken_by_values() -> None:
    written(lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 1e-6))


def healthy_by_hand() -> None:
    written(normalized(1.0))


def healthy_normalization_with_a_high_rate() -> None:
    written(normalized(1e-4), rate=1000.0)


def healthy_loss_scale_that_is_divided_out() -> None:
    def write(parameters) -> None:
        for each in parameters:
            each.grad.div_(65536.0)

    written(write, factor=65536.0)


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


def broken_by_values_with_momentum() -> None:
    def write(parameters) -> None:
        for each in parameters:
            each.grad.clamp_(-1e-3, 1e-3)

    written(write, factor=200.0, rate=2e-4)


def healthy_values_of_a_loss_that_falls() -> None:
    written(lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 1e-3), rate=10.0)
