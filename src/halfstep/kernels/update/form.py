"""What a step of an optimizer reads and writes: the tensors of parameters, and the rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = 128
"""Elements of a moment in 8 bits that share a scale."""

COUNTERS = 64
"""Programs add to as many counters, so that they seldom wait for each other."""

SPLIT = {torch.int16: 16, torch.int8: 8}
"""The dtypes of the missing bits of a split weight, and how many of fp32's 16 they keep."""


@dataclass(frozen=True)
class Rule:
    """How weights move.

    Attributes:
        kind: "adam" or "sgd".
        settings: For Adam: beta1, beta2, eps, and the L2 penalty. For SGD: momentum, dampening and
            the L2 penalty.
        nesterov: For SGD: whether its momentum is Nesterov's.
        maximize: Whether weights follow the gradient, not its opposite.
    """

    kind: Literal["adam", "sgd"]
    settings: tuple[float, ...]
    nesterov: bool = False
    maximize: bool = False


class Tensors(NamedTuple):
    """Parameters of one device that move by one rule, with one format of each kind of tensor.

    The tensors of a parameter, but for the scales, have the same strides, without gaps. A list is
    empty if the rule needs none.

    Attributes:
        weights: bf16, or fp32 without corrections, which are not rounded.
        gradients: bf16 or fp32.
        corrections: What a weight lacks of its exact value: bf16, added to it (Kahan), or integers,
            the missing bits of fp32 (`SPLIT`). Without corrections, bf16 weights are rounded
            stochastically.
        first: Adam's first moment or SGD's momentum: fp32, bf16, or int8 with `first_scales`.
        second: Adam's second moment: fp32, bf16, or uint8 with `second_scales`.
        first_scales: The scale of each `GROUP` elements, fp32.
        second_scales: The scale of each `GROUP` elements, fp32.
    """

    weights: Sequence[torch.Tensor]
    gradients: Sequence[torch.Tensor]
    corrections: Sequence[torch.Tensor] = ()
    first: Sequence[torch.Tensor] = ()
    second: Sequence[torch.Tensor] = ()
    first_scales: Sequence[torch.Tensor] = ()
    second_scales: Sequence[torch.Tensor] = ()

    def of(self, index: int) -> list[torch.Tensor | None]:
        """Return the tensors of one parameter, None where there is none."""
        return [part[index] if part else None for part in self]


class Device(NamedTuple):
    """What a step reads on the device, so that a replayed step reads it anew.

    Attributes:
        numbers: fp32 `[parameters, 3]`. For Adam: the learning rate over the bias correction of the
            first moment; the reciprocal root of that of the second; and the factor of decoupled
            weight decay. For SGD: the learning rate, and two unused numbers.
        places: int64 `[parameters]`: the sequence of random numbers of each parameter, below 2^30.
        draws: int64 scalar: the number of earlier steps that drew random numbers.
        found_inf: fp32 scalar: if it is not 0, nothing is written. None if steps are not skipped.
        seed: Key of the random numbers, 64 bits.
        lost: int64 `[COUNTERS]`, whose sum is the number of updates so far that round to nothing:
            the new weight differs, but with its correction it is stored as the old one. None to
            count none.
    """

    numbers: torch.Tensor
    places: torch.Tensor
    draws: torch.Tensor
    found_inf: torch.Tensor | None
    seed: int
    lost: torch.Tensor | None = None
