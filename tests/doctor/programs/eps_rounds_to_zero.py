"""Features of a sample that is all zeros, divided by their norm, in fp16."""

import torch
from torch.nn import functional

from doctor.loops import Around, half_steps

CODE = "EPS_ROUNDS_TO_ZERO"


def normed(features: torch.Tensor, eps: float) -> torch.Tensor:
    present = torch.arange(len(features))[:, None] > 0
    return functional.normalize((features * present).half(), eps=eps)


def broken() -> None:
    half_steps(Around(lambda features: normed(features, 1e-12)))


def mended() -> None:
    half_steps(Around(lambda features: normed(features, 1e-4)))
