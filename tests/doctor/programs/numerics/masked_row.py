"""A mask that hides every position from one query."""

import torch
from torch.nn import functional

from doctor.loops import plain_steps
from doctor.programs.attention import Attention

CODE = "FULLY_MASKED_ROW"


def train(*, first: int) -> None:
    places = torch.arange(6)
    mask = places[None, :] >= places[:, None] + first
    plain_steps(Attention(1.0, scale_first=True, mask=mask), functional.cross_entropy)


def broken() -> None:
    train(first=0)


def mended() -> None:
    train(first=1)
