"""Averages in an optimizer's state that cannot fall, because their format rounds the factor to 1.

Without a gradient, an average of squares is multiplied by its factor. A copy of the optimizer makes
a few steps with gradients of 0, once with its state in fp32: elements that fall there by one
factor, and in the program's own format not at all, never fall. A sum or a maximum falls in neither,
and an average that is rounded stochastically falls in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.replay.optimizer_copy import OptimizerCopy
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.tape.tape import random_state
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from torch.optim import Optimizer

_PARAMETERS = 4
_MOST = 2**22  # elements
_FEWEST = 8
_STEPS = 8
_LOWEST = 0.95
"""The lowest factor that an average of many steps may have."""
_ALIKE = 1e-3
_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class StuckMoment:
    """A state of an optimizer that is never negative, and cannot fall.

    Attributes:
        optimizer: Number of the optimizer.
        state: Name of the state.
        format: Its half format.
        factor: The factor by which it would fall in a step without gradients; 0 if the optimizer
            itself casts it to its format, so that it does not fall in the copy either.
    """

    optimizer: int
    state: str
    format: str
    factor: float


@dataclass(frozen=True, slots=True)
class StuckMoments:
    """All such states."""

    signal: ClassVar[str] = "decays"
    states: tuple[StuckMoment, ...] = ()


class Decays(Signal):
    """Examines half-precision states of fp32 parameters, at the end of a program."""

    def freeze(self) -> dict[str, Any]:
        """Return the states that cannot fall."""
        found: list[StuckMoment] = []
        for number, optimizer in self.watched.registry.optimizers.alive().items():
            chosen = [each for each in parameters_of(optimizer) if _states(optimizer, each)]
            chosen = [each for each in chosen if each.numel() <= _MOST][:_PARAMETERS]
            if chosen:
                found += self._stuck(number, optimizer, chosen)
        return {StuckMoments.signal: StuckMoments(tuple(found))}

    @staticmethod
    def _stuck(
        number: int, optimizer: Optimizer, parameters: list[torch.Tensor]
    ) -> list[StuckMoment]:
        state = random_state(everything=True)
        try:
            own, exact = (_after(optimizer, parameters, exact=each) for each in (False, True))
        except Exception:  # noqa: BLE001  (the optimizer is the program's, and may refuse a copy)
            return []
        finally:
            state.restore()
        found = {}
        for each in parameters:
            for name, before in _states(optimizer, each).items():
                factor = _factor(before, own.state(each).get(name), exact.state(each).get(name))
                if factor is not None:
                    found[name] = StuckMoment(number, name, format_name(before.dtype), factor)
        return [*found.values()]


def _after(optimizer: Optimizer, only: list[torch.Tensor], *, exact: bool) -> OptimizerCopy:
    """Return a copy of an optimizer after some steps without gradients."""
    made = OptimizerCopy(optimizer, exact=exact, only=only)
    for _ in range(_STEPS):
        made.update({id(each): torch.zeros_like(each) for each in only}, None)
    return made


def _factor(before: torch.Tensor, own: Any, exact: Any) -> float | None:
    """Return by which factor a state would fall in a step; None if it falls, or would not."""
    if not isinstance(own, torch.Tensor) or not isinstance(exact, torch.Tensor):
        return None
    is_some = before > 0
    if own.dtype != before.dtype or int(is_some.sum()) < _FEWEST:
        return None
    same = (own == before)[is_some].float().mean()
    if float(same) < _SHARE:
        return None
    if exact.dtype == before.dtype:
        return 0.0
    factors = (exact[is_some] / before[is_some].float()) ** (1 / _STEPS)
    middle = float(factors.median())
    alike = ((factors - middle).abs() < _ALIKE * (1 - middle) + 1e-6).float().mean()
    falls = _LOWEST < middle < 1 and float(alike) >= _SHARE
    return middle if falls else None


def _states(optimizer: Optimizer, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the half-precision states of an fp32 parameter without negative numbers."""
    states = optimizer.state.get(parameter)
    if parameter.dtype != torch.float32 or not isinstance(states, dict):
        return {}
    return {
        str(name): each
        for name, each in states.items()
        if isinstance(each, torch.Tensor) and each.dtype in HALVES
        if each.shape == parameter.shape and bool((each >= 0).all())
    }
