"""A padding mask with the lowest fp16 number is added twice: -inf at every padded position."""

import torch

from doctor.loops import batches, half_steps
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


class Buffered(Padded):
    """The constant of the mask is a buffer, which a cast of the module casts, too."""

    def __init__(self, constant: float) -> None:
        super().__init__(1)
        self.register_buffer("absent", torch.tensor(constant))

    def masked(self, scores: torch.Tensor) -> torch.Tensor:
        return scores + self.absent * self.mask.to(scores.dtype)


def train_in_half(model: Padded) -> None:
    model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images.half()).float(), labels).backward()
        optimizer.step()


def broken_by_a_cast_of_the_module() -> None:
    train_in_half(Buffered(-1e9))


def healthy_cast_of_a_module_with_a_smaller_constant() -> None:
    train_in_half(Buffered(-1e4))


def healthy_cast_of_a_module_whose_buffer_is_infinite() -> None:
    model = Buffered(-1e4)
    causal = torch.full((6, 6), float("-inf")).triu(1)
    model.register_buffer("causal", causal)
    model.masked = lambda scores: scores + model.causal
    train_in_half(model)


class Given(Padded):
    """Attention whose mask is an argument."""

    def forward(self, images: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        self.masked = lambda scores: scores + hidden
        return super().forward(images)


def train_with_given_masks(mask_of) -> None:
    model = Given(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        hidden = mask_of(images[:, None, :1] > 0)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images, hidden), labels).backward()
        optimizer.step()


def broken_by_a_mask_that_the_loop_computes() -> None:
    train_with_given_masks(lambda hidden: hidden.half() * -1e9)


def broken_by_a_mask_that_the_loop_casts() -> None:
    train_with_given_masks(lambda hidden: (hidden.float() * -1e9).half())


def healthy_mask_that_the_loop_computes_in_fp32() -> None:
    train_with_given_masks(lambda hidden: hidden.float() * -1e9)
