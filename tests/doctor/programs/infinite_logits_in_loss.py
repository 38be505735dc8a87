"""Label smoothing over a class that is masked out."""

import torch
from torch.nn import functional

from doctor.loops import classifier, half_steps

CODE = "INFINITE_LOGITS_IN_LOSS"


def train(smoothing: float) -> None:
    def loss_function(outputs, labels):
        logits = outputs.float().masked_fill(torch.arange(3) == 2, float("-inf"))
        return functional.cross_entropy(logits, labels.clamp(max=1), label_smoothing=smoothing)

    half_steps(classifier(), loss_function)


def broken() -> None:
    train(0.1)


def mended() -> None:
    train(0.0)
