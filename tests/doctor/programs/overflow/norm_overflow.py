"""A hand-written layer norm in fp16, on features of several hundred."""

import torch
from torch.nn import functional

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


def broken_by_torch_s_variance() -> None:
    def own(features):
        large = features.half() * 3000
        return (large - large.mean(-1, keepdim=True)) * (large.var(-1, keepdim=True) + 1e-5).rsqrt()

    half_steps(Around(own))


def broken_in_groups_of_a_half_model() -> None:
    def own(features):
        groups = features.view(-1, 4, 4) * 2000
        centred = groups - groups.mean((1, 2), keepdim=True)
        variance = (centred * centred).mean((1, 2), keepdim=True)
        return (centred / (variance + 1e-3).sqrt()).view(-1, 16)

    half_steps(Around(own))


def broken_by_an_eps_of_a_constant_row() -> None:
    half_steps(
        Around(lambda features: functional.layer_norm((features * 0).half(), (16,), eps=1e-12))
    )


def healthy_in_torch_s_own_norm() -> None:
    half_steps(Around(lambda features: functional.layer_norm((features * 3000).half(), (16,))))


def healthy_for_small_features() -> None:
    half_steps(Around(lambda features: normed(features.half() * 60)))


def broken_by_a_cast_before_the_norm() -> None:
    half_steps(
        Around(lambda features: functional.layer_norm((features.float() * 1e6).half(), (16,)))
    )


def broken_by_a_variance_that_is_not_centred_first() -> None:
    def own(features):
        large = features.half() * 900
        mean = large.mean(-1, keepdim=True)
        variance = (large * large).mean(-1, keepdim=True) - mean * mean
        return (large - mean) / torch.sqrt(variance.clamp_min(0) + 1e-5)

    half_steps(Around(own))


def broken_in_a_norm_of_neighbours() -> None:
    norm = torch.nn.LocalResponseNorm(5, alpha=1e-3)
    half_steps(Around(lambda features: norm((features * 900).view(-1, 8, 2)).view(-1, 16)))


def healthy_norm_of_neighbours_in_fp32() -> None:
    norm = torch.nn.LocalResponseNorm(5, alpha=1e-3)
    half_steps(Around(lambda features: norm((features.float() * 900).view(-1, 8, 2)).view(-1, 16)))


def healthy_norm_of_small_neighbours() -> None:
    norm = torch.nn.LocalResponseNorm(5, alpha=1e-3)
    half_steps(Around(lambda features: norm((features * 9).view(-1, 8, 2)).view(-1, 16)))
