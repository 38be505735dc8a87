"""A mask of -1e9 in fp16."""

import torch

from doctor.loops import half_steps
from doctor.programs.attention import Attention

CODE = "MASK_NOT_REPRESENTABLE"


class Masked(Attention):
    """Attention with scores that are masked by a number."""

    def __init__(self, value: float) -> None:
        super().__init__(1.0, scale_first=True, mask=torch.ones(6, 6).triu(1).bool())
        self.value = value

    def masked(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(self.mask, self.value)


def broken() -> None:
    half_steps(Masked(-1e9))


def mended() -> None:
    half_steps(Masked(torch.finfo(torch.float16).min))


def broken_by_a_bias_in_fp16() -> None:
    model = Masked(0.0)
    model.masked = lambda scores: scores + torch.full((6, 6), -1e10, dtype=torch.float16)
    half_steps(model)


def healthy_in_fp32() -> None:
    model = Masked(0.0)
    model.masked = lambda scores: scores.float().masked_fill(model.mask, -1e9)
    half_steps(model)


def broken_on_a_diagonal() -> None:
    model = Masked(0.0)
    model.masked = _without_itself
    half_steps(model)


def _without_itself(scores: torch.Tensor) -> torch.Tensor:
    for row in scores:
        row.detach().fill_diagonal_(-1e9)
    return scores
