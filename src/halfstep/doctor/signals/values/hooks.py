"""Finds hooks of parameters that limit gradients, such as a hook that clamps them.

A hook gets the gradients of the scaled loss, before any scaler can unscale them. In sampled
backward passes, the gradient before and after a hook is kept until the end of the backward. A hook
that multiplies a gradient by a mask or by a constant fits any loss scale and does not count, and
neither does one that projects a gradient, such as one that subtracts the mean of each row.
"""

from __future__ import annotations

import functools
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record.sites import calling_line
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.signals.values.unscaling import Unscaling
from halfstep.doctor.tensors.local import local
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.signals.watched import Watched

_TOLERANCE = 0.01
"""Relative difference of two factors that counts as rounding, also in bf16."""


@dataclass(slots=True, eq=False)
class _Hook:
    parameter: weakref.ref[torch.Tensor]
    mark: Mark | None
    calls: int = 0
    factor: float | None = None


class Hooks(Signal):
    """Watches the hooks that the loop registers on parameters."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._on = False
        self._seen: list[tuple[_Hook, torch.Tensor, torch.Tensor]] = []

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the methods of tensors that register hooks."""
        for name, around in (
            ("register_hook", self._given_gradient),
            ("register_post_accumulate_grad_hook", self._given_parameter),
        ):
            on_register = functools.partial(self._on_register, around)
            yield Hook(torch.Tensor, name, self.watched.in_loop(on_register))

    def _on_register(self, around: Any, original: Any, tensor: torch.Tensor, hook: Any) -> Any:
        if tensor.is_leaf and tensor.requires_grad:
            hook = around(hook, _Hook(weakref.ref(tensor), calling_line()))
        return original(tensor, hook)

    @contextmanager
    def examined(self, *, on: bool) -> Iterator[None]:
        """Examine the hooks that run in the block, if it is the backward of a scaled loss."""
        self._on = on
        try:
            yield
        finally:
            self._on = False

    def _given_gradient(self, hook: Callable[[torch.Tensor], Any], notes: _Hook) -> Any:
        """Return a hook that calls another one and notes the gradient that it returns."""

        @functools.wraps(hook, updated=())
        def call(gradient: torch.Tensor) -> Any:
            result = hook(gradient)
            if result is not None and result is not gradient and self._samples(notes):
                self._note(notes, gradient, result)
            return result

        return call

    def _given_parameter(self, hook: Callable[[torch.Tensor], Any], notes: _Hook) -> Any:
        """Return a hook that calls another one and notes what it does to the gradient."""

        @functools.wraps(hook, updated=())
        def call(parameter: torch.Tensor) -> Any:
            grad = parameter.grad
            if grad is None or not self._samples(notes):
                return hook(parameter)
            before, version = grad.detach().clone(), grad._version
            result = hook(parameter)
            after = parameter.grad
            if after is not None and (after is not grad or after._version != version):
                self._note(notes, before, after.detach().clone())
            return result

        return call

    def _samples(self, notes: _Hook) -> bool:
        """Count a call of a hook; return whether it is sampled."""
        notes.calls += 1
        return is_sampled(notes.calls)

    def _note(self, notes: _Hook, before: torch.Tensor, after: torch.Tensor) -> None:
        if self._on:
            self._seen.append((notes, before, after))
        self.watched[Unscaling].changed(notes.mark, before, after)

    def limits(self) -> Iterator[tuple[torch.Tensor, Mark | None]]:
        """Yield each parameter whose hook has limited its gradient; waits for the device."""
        seen, self._seen = self._seen, []
        for notes, before, after in seen:
            parameter = notes.parameter()
            if parameter is not None and _limits(notes, local(before), local(after)):
                yield parameter, notes.mark


def _limits(notes: _Hook, before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return whether the elements are multiplied by different factors, or by one that changes."""
    if before.shape != after.shape or before.is_sparse or after.is_sparse:
        return False
    kept = before.isfinite() & after.isfinite() & (before != 0) & (after != 0)
    old, new = before[kept].double(), after[kept].double()
    if not old.numel() or _projects(before.double(), after.double()):
        return False
    factors = new / old
    lowest, highest = factors.min().item(), factors.max().item()
    first, notes.factor = notes.factor, highest
    known = highest if first is None else first
    return max(abs(known - lowest), abs(known - highest)) > _TOLERANCE * abs(known)


def _projects(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return whether what was taken away is orthogonal to what is left, at any loss scale."""
    away = before - after
    return bool((after * away).sum().abs() <= _TOLERANCE * after.norm() * away.norm())
