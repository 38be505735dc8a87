"""Features divided by their sum, which overflows fp16 before it divides."""

import torch

from doctor.loops import Around, half_steps

CODE = "SUM_OVERFLOW"


def shares(features: torch.Tensor, dtype) -> torch.Tensor:
    sizes = features.abs() * 20000
    return features + (sizes / sizes.sum(-1, keepdim=True, dtype=dtype)).sqrt().to(features.dtype)


def train(dtype) -> None:
    half_steps(Around(lambda features: shares(features, dtype)))


def broken() -> None:
    train(torch.float16)


def mended() -> None:
    train(torch.float32)
