"""The loss is divided by the number of all samples, so gradients are far below Adam's eps."""

import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "EPS_ABOVE_GRADIENTS"


def train(
    *, divisor: float = 1.0, eps: float = 1e-8, rate: float = 1e-3, kind=None, steps: int = 12
) -> None:
    model = classifier()
    optimizer = (kind or torch.optim.Adam)(model.parameters(), lr=rate, eps=eps)
    for images, labels in batches(steps):
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(images), labels) / divisor).backward()
        optimizer.step()


def broken() -> None:
    train(divisor=5e12)


def mended() -> None:
    train()


def broken_by_a_large_eps() -> None:
    train(eps=1e4)


def broken_in_another_optimizer() -> None:
    train(eps=1e5, kind=torch.optim.RMSprop)


def healthy_large_eps_with_a_large_rate() -> None:
    train(eps=30.0, rate=3.0, kind=torch.optim.RMSprop)


def healthy_small_gradients_with_a_smaller_eps() -> None:
    train(divisor=5e12, eps=1e-20)


def broken_by_an_eps_near_the_gradients() -> None:
    train(eps=3.0, rate=3e-5, steps=24)


def healthy_eps_near_the_gradients() -> None:
    train(eps=3.0, rate=0.3, steps=24)
