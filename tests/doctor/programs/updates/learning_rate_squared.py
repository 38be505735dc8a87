"""The function of LambdaLR returns the rate itself."""

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from doctor.loops import batches, classifier

CODE = "LEARNING_RATE_SQUARED"
RATE = 0.02


def train(function, *, rate: float = RATE, groups: bool = False) -> None:
    model = classifier()
    parameters = (
        [
            {"params": model[:3].parameters(), "lr": rate / 10},
            {"params": model[3].parameters()},
        ]
        if groups
        else model.parameters()
    )
    optimizer = torch.optim.SGD(parameters, lr=rate)
    scheduler = LambdaLR(optimizer, function)
    for images, labels in batches(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        scheduler.step()


def broken() -> None:
    train(lambda step: RATE * 0.95**step)


def mended() -> None:
    train(lambda step: 0.95**step)


def broken_with_a_warm_up() -> None:
    train(lambda step: RATE * min(1.0, (step + 1) / 10))


def broken_in_groups() -> None:
    train(lambda step: RATE * (1 - step / 40), groups=True)


def healthy_rate_of_a_transformer() -> None:
    """The optimizer has a rate of 1, and the function returns the rate."""
    train(lambda step: 0.1 * min((step + 1) ** -0.5, (step + 1) * 10**-1.5), rate=1.0)


def healthy_factor_that_equals_the_rate_at_the_end() -> None:
    train(lambda step: 0.1 if step > 10 else 1.0, rate=0.1)


def healthy_factors_in_groups() -> None:
    train(lambda step: 1 - step / 40, groups=True)
