"""Whether second moments in fp16, of any optimizer, are 0 for gradients that are not.

An average of squares has no negative numbers. The square of a small gradient is below the numbers
of fp16, so the average is 0, and an update divides by little more than eps.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from halfstep.doctor.signals.watched import Watched

_PARAMETERS = 4
_SMALL = 0.05
"""A gradient below it, squared and averaged with a factor up to 0.99999, may be 0 in fp16."""


@dataclass(frozen=True, slots=True)
class EmptyMoment:
    """A state of an optimizer in fp16 that is never negative, and often 0.

    Attributes:
        optimizer: Number of the optimizer.
        state: Name of the state.
        zeros: Number of its elements that are 0 although the gradient is not, in the sampled step
            with the largest share of them.
        count: Number of elements whose gradient is small, and not 0.
    """

    optimizer: int
    state: str
    zeros: int
    count: int


@dataclass(frozen=True, slots=True)
class EmptyMoments:
    """All such states."""

    signal: ClassVar[str] = "moments"
    states: tuple[EmptyMoment, ...] = ()


class Moments(Signal):
    """Examines the states of a few parameters in some of the steps."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._steps: Counter[int] = Counter()
        self._worst: dict[tuple[int, str], tuple[int, int]] = {}
        self._signed: set[tuple[int, str]] = set()

    def after_step(self, optimizer: Optimizer) -> None:
        """Examine states in fp16."""
        number = self.watched.registry.optimizers.number(optimizer)
        self._steps[number] += 1
        if not is_sampled(self._steps[number]):
            return
        zeros, counts = Counter[str](), Counter[str]()
        for parameter in parameters_of(optimizer)[:_PARAMETERS]:
            for name, state, gradient in _in_fp16(optimizer, parameter):
                has_gradient = (gradient != 0) & (gradient.abs() < _SMALL)
                zeros[name] += int(((state == 0) & has_gradient).sum())
                counts[name] += int(has_gradient.sum())
                if bool((state < 0).any()) or _is_mask(state):
                    self._signed.add((number, name))
        for name, count in counts.items():
            key, (worst, of) = (number, name), self._worst.get((number, name), (0, 1))
            if zeros[name] * of > worst * count:
                self._worst[key] = zeros[name], count

    def freeze(self) -> dict[str, Any]:
        """Return the states that are never negative, and sometimes 0."""
        found = (
            EmptyMoment(*key, zeros, count)
            for key, (zeros, count) in self._worst.items()
            if key not in self._signed
        )
        return {EmptyMoments.signal: EmptyMoments(tuple(found))}


def _is_mask(state: torch.Tensor) -> bool:
    return bool((state == 1).any() and ((state == 0) | (state == 1)).all())


def _in_fp16(
    optimizer: Optimizer, parameter: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    states = optimizer.state.get(parameter)
    gradient = parameter.grad
    if not isinstance(states, dict) or gradient is None or gradient.layout is not torch.strided:
        return
    for name, state in states.items():
        if not isinstance(state, torch.Tensor) or state.dtype != torch.float16:
            continue
        if state.shape == parameter.shape and state.device == gradient.device:
            yield str(name), state, gradient
