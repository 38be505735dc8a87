"""A normalization written by hand, in fp16, of samples that are all zeros, with a small eps."""

import torch
from torch.nn import functional

from doctor.loops import Around, half_steps, plain_steps

CODE = "DERIVATIVE_OVERFLOWS"


def normed(features: torch.Tensor, eps: float) -> torch.Tensor:
    present = (features * (torch.arange(len(features))[:, None] > 0)).half()
    return present * torch.rsqrt(present.square().mean(-1, keepdim=True) + eps)


def broken() -> None:
    half_steps(Around(lambda features: normed(features, 1e-4)))


def mended() -> None:
    half_steps(Around(lambda features: normed(features, 1e-3)))


def broken_in_a_power() -> None:
    def own(features):
        small = (features * 0).half()
        return features * (small.square().mean(-1, keepdim=True) + 1e-5).pow(-0.5)

    half_steps(Around(own))


def broken_in_a_reciprocal() -> None:
    def own(features):
        small = (features * 0).half()
        return features * (small.square().mean(-1, keepdim=True) + 1e-3).reciprocal()

    half_steps(Around(own))


def healthy_in_a_reciprocal() -> None:
    def own(features):
        small = (features * 0).half()
        return features * (small.square().mean(-1, keepdim=True) + 1e-2).reciprocal()

    half_steps(Around(own))


def healthy_in_fp32() -> None:
    def own(features):
        small = (features * 0).float()
        return features * torch.rsqrt(small.square().mean(-1, keepdim=True) + 1e-4)

    plain_steps(Around(own), functional.cross_entropy)


def divided_in_fp32(features: torch.Tensor, eps: float) -> torch.Tensor:
    present = (features * (torch.arange(len(features))[:, None] > 0)).half().float()
    return present / (present.norm(dim=-1, keepdim=True) + eps)


def broken_where_the_gradient_returns_to_fp16() -> None:
    half_steps(Around(lambda features: divided_in_fp32(features, 1e-8)))


def healthy_where_the_gradient_returns_to_fp16() -> None:
    half_steps(Around(lambda features: divided_in_fp32(features, 1e-4)))
