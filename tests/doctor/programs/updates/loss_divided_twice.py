"""A loop divides its loss by the number of micro-batches, and the helper around it as well."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "LOSS_DIVIDED_TWICE"
EVERY = 4


def train(divided, *, every: int = EVERY) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (images, labels) in enumerate(batches(16), 1):
        divided(functional.cross_entropy(model(images), labels)).backward()
        if number % every == 0:
            optimizer.step()
            optimizer.zero_grad()


def broken() -> None:
    train(lambda loss: (loss / EVERY) / EVERY)


def mended() -> None:
    train(lambda loss: loss / EVERY)


def broken_by_a_product() -> None:
    train(lambda loss: (loss * (1 / EVERY)).float() / EVERY)


def healthy_other_number() -> None:
    """The loss is a sum over two of something, and a step has four micro-batches."""
    train(lambda loss: (loss / 2) / EVERY)


def healthy_mean_over_both() -> None:
    train(lambda loss: (loss / 2) / 2)


def healthy_without_accumulation() -> None:
    train(lambda loss: (loss / EVERY) / EVERY, every=1)
