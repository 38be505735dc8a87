"""Finds hooks of parameters that limit gradients, such as a hook that clamps them.

A hook gets the gradients of the scaled loss, before any scaler can unscale them. In sampled
backward passes, the gradient before and after a hook is kept until the end of the backward. A hook
that multiplies a gradient by a mask or by a constant fits any loss scale and does not count.
"""

from __future__ import annotations

import functools
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record.sites import calling_line
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tensors.local import local

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
        """Yield the hook of `Tensor.register_hook`."""
        yield Hook(torch.Tensor, "register_hook", self.watched.in_loop(self._on_register))

    def _on_register(self, original: Any, tensor: torch.Tensor, hook: Any) -> Any:
        if tensor.is_leaf and tensor.requires_grad:
            hook = self._watched(hook, tensor, calling_line())
        return original(tensor, hook)

    @contextmanager
    def examined(self, *, on: bool) -> Iterator[None]:
        """Examine the hooks that run in the block, if it is the backward of a scaled loss."""
        self._on = on
        try:
            yield
        finally:
            self._on = False

    def _watched(
        self, hook: Callable[[torch.Tensor], Any], parameter: torch.Tensor, mark: Mark | None
    ) -> Callable[[torch.Tensor], Any]:
        """Return a hook that calls another one and notes what it returns.

        Args:
            hook: The hook of the loop.
            parameter: The parameter.
            mark: The line that registers the hook.
        """
        notes = _Hook(weakref.ref(parameter), mark)

        @functools.wraps(hook, updated=())
        def call(gradient: torch.Tensor) -> Any:
            result = hook(gradient)
            if self._on and result is not None and result is not gradient:
                notes.calls += 1
                if is_sampled(notes.calls):
                    self._seen.append((notes, gradient, result))
            return result

        return call

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
    factors = after[kept].double() / before[kept].double()
    if not factors.numel():
        return False
    lowest, highest = factors.min().item(), factors.max().item()
    first, notes.factor = notes.factor, highest
    known = highest if first is None else first
    return max(abs(known - lowest), abs(known - highest)) > _TOLERANCE * abs(known)
