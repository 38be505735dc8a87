"""Detects whether an optimizer compensates for the rounding of its half-precision parameters.

An optimizer may keep an fp32 copy of the parameter, keep the rounding error in a second tensor
(Kahan summation), or round stochastically. Each method is recognised by its behaviour, not by its
name: the fp32 copy rounds to the parameter, the second tensor contains the rounding errors, and
stochastic rounding draws random numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.tape.tape import random_state
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.optim import Optimizer

CANDIDATES = 8
MOST = 0.99
# The changes of a parameter and of its rounding error mostly cancel. This is the limit of their
# sum, relative to the change of the parameter.
REMAINS = 0.6


class Keeping:
    """Copies of an optimizer's tensors before a step; after it, call `of` for each parameter.

    Args:
        optimizer: The optimizer.
        parameters: The sampled parameters.
        some: A function that returns the sampled elements of a tensor.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Iterable[torch.Tensor],
        some: Callable[[Any], torch.Tensor],
    ) -> None:
        halves = [each for each in parameters if each.dtype in HALVES]
        self._some = some
        self._random = random_state() if halves else None
        held = tensors_in(vars(optimizer)) if halves else []
        mine = {id(each) for group in optimizer.param_groups for each in group["params"]}
        held = [each for each in held if each.is_floating_point() and id(each) not in mine]
        self._held = {
            id(parameter): [
                (each, some(each).clone())
                for each in held
                if each.shape == parameter.shape and each is not parameter.grad
            ][:CANDIDATES]
            for parameter in halves
        }

    def draws(self) -> bool:
        """Return whether the step has drawn random numbers; call it after the step."""
        before = self._random
        if before is None:
            return False
        now = random_state()
        return not torch.equal(before.cpu, now.cpu) or any(
            not torch.equal(one, other) for one, other in zip(before.cuda, now.cuda, strict=False)
        )

    def of(self, parameter: torch.Tensor, before: torch.Tensor) -> bool:
        """Return whether the optimizer has an fp32 copy or the rounding errors of a parameter.

        Args:
            parameter: The parameter, after the step.
            before: The sampled elements of the parameter before the step.
        """
        now = self._some(parameter)
        return any(
            _is_wider(self._some(each), now) or _is_remainder(held, self._some(each), before, now)
            for each, held in self._held.get(id(parameter), ())
        )


def _is_wider(candidate: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Return whether a tensor rounds to the parameter and has more precision."""
    if candidate.dtype in HALVES:
        return False
    same = (candidate.to(parameter.dtype) == parameter).double().mean().item()
    return same >= MOST and bool((candidate != parameter).any())


def _is_remainder(
    held: torch.Tensor, candidate: torch.Tensor, before: torch.Tensor, now: torch.Tensor
) -> bool:
    """Return whether a tensor contains the rounding errors of the parameter."""
    eps = torch.finfo(now.dtype).eps
    before, now = before.double(), now.double()
    moved, beside = now - before, candidate.double() - held.double()
    _, exponent = torch.frexp(now)
    spacing = torch.ldexp(torch.full_like(now, eps), exponent - 1)
    small = candidate.double().abs() <= spacing
    changed = moved != 0
    if not changed.any() or small.double().mean() < MOST:
        return False
    if not bool((beside[~changed] != 0).double().mean() > 1 - REMAINS):
        return False
    together = torch.minimum((moved + beside).abs(), (moved - beside).abs())[changed]
    return bool((together / moved[changed].abs()).median() <= REMAINS)
