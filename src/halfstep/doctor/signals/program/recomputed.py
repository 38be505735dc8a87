"""Checkpoints with `preserve_rng_state=False` whose function draws random numbers.

The backward pass runs such a function again and draws other numbers, so the gradients belong to
another dropout mask than the loss. Only these checkpoints are examined.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.utils import checkpoint

from halfstep.doctor.internals import recomputing
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tape.tape import RandomState, random_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.doctor.signals.watched import Watched

_LINES = 16


@dataclass(frozen=True, slots=True)
class RandomCheckpoint:
    """A line with such checkpoints.

    Attributes:
        count: Number of calls with gradients.
        examined: Number of runs of the function that were examined, in a forward or a backward.
        draws: Number of these that drew random numbers.
        site: The line.
    """

    count: int
    examined: int
    draws: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class RandomCheckpoints:
    """All such lines."""

    signal: ClassVar[str] = "recomputed"
    lines: tuple[RandomCheckpoint, ...] = ()


class Recomputed(Signal):
    """Compares the state of torch's generators before and after the function."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[Mark | None, list[int]] = {}

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of both kinds of checkpoints."""
        owner, name = recomputing()
        if hasattr(owner, name):
            yield Hook(owner, name, self.watched.here(self._on_checkpoint))
        yield Hook(checkpoint.CheckpointFunction, "forward", self._forwarding)

    def _on_checkpoint(self, original: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("preserve_rng_state", True) and torch.is_grad_enabled():
            function = self._noted(function)
        return original(function, *args, **kwargs)

    def _forwarding(self, original: Any) -> Any:
        def forward(
            _: type[Any], ctx: Any, function: Any, preserve_rng_state: bool, *args: Any
        ) -> Any:
            recomputes = any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)
            if not preserve_rng_state and recomputes and self.watched.is_here():
                function = self._noted(function)
            return original.__func__(ctx, function, preserve_rng_state, *args)

        return classmethod(forward)  # A static method cannot name what it wraps.

    def _noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        with self.watched.guard.own():
            mark = calling_line()
            if mark in self._lines or len(self._lines) < _LINES:
                line = self._lines.setdefault(mark, [0, 0, 0])
                line[0] += 1
                if is_sampled(line[0]):
                    return self._examined(function, line)
        return function

    def _examined(self, function: Callable[..., Any], line: list[int]) -> Callable[..., Any]:
        guard = self.watched.guard

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or guard.is_own or _is_capturing():
                return function(*args, **kwargs)
            # A backward pass may run in another thread, which the loop waits for.
            with guard.own() if guard.is_here else nullcontext():
                before = random_state()
            try:
                return function(*args, **kwargs)
            finally:  # A backward pass leaves the function as soon as it has what it needs.
                with guard.own() if guard.is_here else nullcontext():
                    line[1] += 1
                    line[2] += _differ(before, random_state())

        return call

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        lines = tuple(
            RandomCheckpoint(count, examined, draws, site(mark))
            for mark, (count, examined, draws) in self._lines.items()
        )
        return {RandomCheckpoints.signal: RandomCheckpoints(lines)}


def _differ(before: RandomState, after: RandomState) -> bool:
    if not torch.equal(before.cpu, after.cpu):
        return True
    return any(not torch.equal(a, b) for a, b in zip(before.cuda, after.cuda, strict=False))


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
