"""A layer norm written by hand, on features of some hundreds, in fp16."""

import torch

from doctor.loops import Around, half_steps

CODE = "NORM_OVERFLOW"


def normed(features: torch.Tensor) -> torch.Tensor:
    centred = features - features.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + 1e-5)


def broken() -> None:
    half_steps(Around(lambda features: normed(features * 900)))


def mended() -> None:
    half_steps(Around(lambda features: normed(features.float() * 900)))
