"""A batch of which every target is ignored."""

import torch
from torch.nn import functional

from doctor.loops import classifier, half_steps

CODE = "NOTHING_TO_AVERAGE"


def train(*, kept: int) -> None:
    seen = []

    def loss_function(outputs, labels):
        seen.append(len(labels))
        if len(seen) == 3:
            labels = torch.where(torch.arange(len(labels)) < kept, labels, -100)
        return functional.cross_entropy(outputs.float(), labels)

    half_steps(classifier(), loss_function)


def broken() -> None:
    train(kept=0)


def mended() -> None:
    train(kept=1)
