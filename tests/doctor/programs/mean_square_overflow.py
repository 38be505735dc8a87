"""A root mean square norm in fp16."""

import torch

from doctor.loops import Around, half_steps

CODE = "MEAN_SQUARE_OVERFLOW"


def normed(features: torch.Tensor) -> torch.Tensor:
    return features * torch.rsqrt(features.pow(2).mean(-1, keepdim=True) + 1e-6)


def broken() -> None:
    half_steps(Around(lambda features: normed(features * 900)))


def mended() -> None:
    half_steps(Around(lambda features: normed(features.float() * 900)))
