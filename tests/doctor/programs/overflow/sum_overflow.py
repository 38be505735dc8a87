"""Features are divided by their sum, which overflows fp16."""

import torch
from torch.nn import functional

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


def broken_by_a_count_that_a_loss_is_divided_by() -> None:
    def loss_function(outputs, labels):
        total = functional.cross_entropy(outputs.float(), labels, reduction="sum")
        return total / (outputs.half().repeat(3000, 1) * 0 + 1).sum()

    half_steps(Around(lambda features: features), loss_function)


def broken_in_a_norm_written_by_hand() -> None:
    def own(features):
        large = features.half() * 150
        return large / large.pow(2).sum(-1, keepdim=True).sqrt()

    half_steps(Around(own))


def healthy_for_small_sums() -> None:
    half_steps(
        Around(lambda features: features / (features.half().abs().sum(-1, keepdim=True) + 1))
    )


def healthy_in_an_infinity_that_saturates() -> None:
    def own(features):
        large = (features.half() * 1000).detach().exp()
        return features + 1 / (1 + large)

    half_steps(Around(own))
