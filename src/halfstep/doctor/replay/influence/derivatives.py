"""Backwards of a program's own autograd functions that are not the derivative of their forward.

One call of each function of the last step runs again with inputs that are a little larger and
smaller. Where the forward takes each element on its own, the difference is the derivative of each
element; otherwise, differences along random directions are compared with what the backward gives.
Many backwards differ from the derivative on purpose: where the forward has steps or is flat, as of
a straight-through estimator, or is the identity, as of a reversal, they are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record.answers import WrongDerivative
from halfstep.doctor.record.sites import site
from halfstep.doctor.replay.influence.chains import backward_of
from halfstep.doctor.tape.tape import random_state
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halfstep.doctor.signals.values.own_functions import OwnCall

_FUNCTIONS, _ELEMENTS = 8, 200_000
_STEPS = ((torch.float64, 1e-5), (torch.float32, 3e-3))
"""The formats in which a function runs, and the size of a change relative to the input's."""
_DIRECTIONS = 6
_SMOOTH = 0.02
_OFF, _MANY = 0.2, 0.3
"""A derivative is off by this share of it; and the share of the elements that must be."""
_UNLIKE = 0.5


@dataclass(slots=True, eq=False)
class _Function:
    """A function of one of its inputs.

    Attributes:
        run: Returns the first result for an input.
        given: The input.
        made: The result.
        step: The size of a change.
    """

    run: Callable[[torch.Tensor], torch.Tensor]
    given: torch.Tensor
    made: torch.Tensor
    step: float

    def slope(self, direction: torch.Tensor) -> torch.Tensor | None:
        """Return how the result changes along a direction; None where that is not smooth."""
        slopes = []
        with torch.no_grad():
            for part in (1.0, 0.25):
                change = direction * self.step * part
                upper, lower = self.run(self.given + change), self.run(self.given - change)
                slopes.append((upper - lower) / (2 * self.step * part))
        wide, narrow = slopes
        limit = _SMOOTH * max(float(wide.norm()), float(narrow.norm()))
        return wide if float((wide - narrow).norm()) <= limit else None

    def gradient(self, weights: torch.Tensor) -> torch.Tensor:
        """Return what the backward gives for the sum of the results with some weights."""
        leaf = self.given.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad((self.run(leaf) * weights).sum(), leaf, allow_unused=True)
        return torch.zeros_like(leaf) if found is None else found


def wrong_derivatives(calls: Sequence[OwnCall]) -> Iterator[WrongDerivative]:
    """Yield the functions whose backward is not the derivative.

    Args:
        calls: The calls of autograd functions in a step.
    """
    first = {each.kind: each for each in reversed(calls) if backward_of(each.kind)}
    state = random_state(everything=True)
    try:
        for call in [*first.values()][:_FUNCTIONS]:
            found = _examined(call, state)
            if found is not None:
                code = backward_of(call.kind)
                assert code is not None
                count = sum(each.kind is call.kind for each in calls)
                place = site((code.co_filename, code.co_firstlineno, code.co_name))
                yield WrongDerivative(call.kind.__name__, count, *found, place)
    finally:
        state.restore()


def _examined(call: OwnCall, state: Any) -> tuple[str, float, float] | None:
    if sum(each.numel() for each in call.args if isinstance(each, torch.Tensor)) > _ELEMENTS:
        return None
    for form, size in _STEPS:
        try:
            return _compared(call, form, size, state)
        except Exception:  # noqa: BLE001, S112  # a function that needs another format
            continue
    return None


def _compared(
    call: OwnCall, form: torch.dtype, size: float, state: Any
) -> tuple[str, float, float] | None:
    """Compare the backward with the derivative for each input.

    Returns:
        How they were compared, and two numbers that tell how far they are apart, see
        `WrongDerivative`; None if they are alike, or if the function is one of those that differ on
        purpose.
    """
    args = [_plain(each, form) for each in call.args]
    places = [
        at
        for at, each in enumerate(call.args)
        if isinstance(each, torch.Tensor) and each.is_floating_point() and each.requires_grad
    ]
    found = None
    for at in places:

        def run(value: torch.Tensor, at: int = at) -> torch.Tensor:
            state.restore()
            mine = [each.clone() if isinstance(each, torch.Tensor) else each for each in args]
            result = call.kind.apply(*[*mine[:at], value, *mine[at + 1 :]])
            return next(each for each in _results(result) if each.is_floating_point())

        with torch.autocast(args[at].device.type, enabled=False):
            given = args[at]
            made = run(given).detach()
            function = _Function(run, given, made, size * max(float(given.abs().mean()), 1e-3))
            if not bool(made.isfinite().all()) or _is_multiple(given, made):
                return None
            by_element = _by_element(function)
            if by_element is not None and by_element < 0:
                return None  # The forward has steps.
            mine = (
                ("elements", by_element, 0.0) if by_element is not None else _by_direction(function)
            )
        if mine is None:
            return None
        is_off = mine[1] > _MANY if mine[0] == "elements" else mine[1] < _UNLIKE
        found = found or (mine if is_off else None)
    return found


def _plain(value: Any, form: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to(form) if value.is_floating_point() else value.detach()


def _results(result: Any) -> list[torch.Tensor]:
    every = result if isinstance(result, tuple | list) else [result]
    return [each for each in every if isinstance(each, torch.Tensor)]


def _is_multiple(given: torch.Tensor, made: torch.Tensor) -> bool:
    """Return whether a result is the input itself, or a multiple of it."""
    if given.numel() != made.numel():
        return False
    one, other = given.flatten(), made.flatten()
    factor = (one @ other) / (one @ one).clamp(min=1e-30)
    return float((other - factor * one).norm()) <= 1e-3 * float(other.norm())


def _by_element(function: _Function) -> float | None:
    """Return the share of the elements at which the backward is off.

    Returns:
        None if an element of the result depends on several of the input; -1 if the derivative is
        0 or not smooth at most elements.
    """
    given = function.given
    if given.shape != function.made.shape or given.numel() < 2:
        return None
    ones = torch.ones_like(given)
    half = (torch.arange(given.numel(), device=given.device) % 2).view(given.shape).to(given)
    with torch.no_grad():
        moved = function.run(given + half * function.step) - function.made
        if bool(moved[half == 0].any()):
            return None
        slopes = [
            (function.run(given + part) - function.run(given - part)) / (2 * part)
            for part in (function.step, function.step / 4)
        ]
    exact, near = slopes
    backward = function.gradient(ones)
    counts = (exact.abs() > 1e-6) & ((exact - near).abs() <= _SMOOTH * exact.abs())
    if float(counts.double().mean()) < _MANY:
        return -1.0
    off = (backward - exact).abs() > _OFF * exact.abs()
    return float(off[counts].double().mean())


def _by_direction(function: _Function) -> tuple[str, float, float] | None:
    """Return how alike the backward and the derivative are along random directions."""
    generator = torch.Generator().manual_seed(0)
    exact, backward = [], []
    for _ in range(_DIRECTIONS):
        direction = torch.randn(function.given.shape, generator=generator).to(function.given)
        weights = torch.randn(function.made.shape, generator=generator).to(function.made)
        weights = weights if function.made.numel() > 1 else torch.ones_like(weights)
        slope = function.slope(direction)
        if slope is None:
            return None
        exact.append(float((slope * weights).sum()))
        backward.append(float((function.gradient(weights) * direction).sum()))
    one, other = torch.tensor(exact).double(), torch.tensor(backward).double()
    sizes = float(one.norm()), float(other.norm())
    if sizes[0] <= 1e-6 * float(function.made.norm()) or not sizes[1]:
        return None
    return "directions", float(one @ other) / (sizes[0] * sizes[1]), sizes[1] / sizes[0]
