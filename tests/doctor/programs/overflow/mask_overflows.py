"""A padding mask with the lowest fp16 number is added twice: -inf at every padded position."""

import torch

from doctor.loops import half_steps
from doctor.programs.attention import Attention

CODE = "MASK_OVERFLOWS"


class Padded(Attention):
    """Attention with one sample that is only padding."""

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


def broken_by_a_constant_of_fp32() -> None:
    model = Padded(1)
    model.masked = lambda scores: scores + (model.mask.float() * -1e15).half()
    half_steps(model)


class Constant(Padded):
    """The mask is 1 for padding and 0 elsewhere, times a number that fp16 cannot represent."""

    def masked(self, scores: torch.Tensor) -> torch.Tensor:
        mask = self.mask.to(scores.dtype) * -1e9
        return scores + mask


def broken_by_a_product_with_a_constant() -> None:
    half_steps(Constant(1))


def broken_by_a_bias_on_the_lowest_number() -> None:
    model = Padded(1)
    model.masked = lambda scores: scores.masked_fill(model.mask, torch.finfo(scores.dtype).min) - 32
    half_steps(model)


def broken_by_zero_times_infinity() -> None:
    model = Padded(1)
    model.masked = lambda scores: scores + model.mask.half() * torch.tensor(-1e9).half()
    half_steps(model)


def healthy_where_a_row_keeps_a_position() -> None:
    model = Padded(2)
    model.mask = torch.ones(6, 6).triu(1).bool()
    half_steps(model)


def healthy_with_infinities_on_purpose() -> None:
    model = Padded(2)
    model.mask = torch.ones(6, 6).triu(1).bool()
    bias = torch.zeros(6, 6).masked_fill(model.mask, float("-inf"))
    model.masked = lambda scores: scores + bias.half()
    half_steps(model)
