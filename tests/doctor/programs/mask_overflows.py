"""A padding mask added twice, as the lowest fp16 number: -inf for every position of a sample."""

import torch

from doctor.loops import half_steps
from doctor.programs.attention import Attention

CODE = "MASK_OVERFLOWS"


class Padded(Attention):
    """Attention over scores of which those of one sample are all padding."""

    def __init__(self, times: int) -> None:
        super().__init__(1.0, scale_first=True, mask=torch.arange(8)[:, None, None] == 0)
        self.times = times

    def masked(self, scores: torch.Tensor) -> torch.Tensor:
        mask = self.mask.to(scores.dtype) * torch.finfo(scores.dtype).min
        for _ in range(self.times):
            scores = scores + mask
        return scores


def broken() -> None:
    half_steps(Padded(2))


def mended() -> None:
    half_steps(Padded(1))
