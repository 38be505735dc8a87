"""Checkpoints whose function draws other random numbers when the backward pass runs it again.

Then the gradients belong to another dropout mask than the loss. A checkpoint restores only torch's
default generators, and these only with `preserve_rng_state=True`. So a function may also draw
other numbers from a `torch.Generator` of the program, from numpy or from Python.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from halfstep.doctor.internals import recomputing
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tape.tape import RandomState, random_state
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.doctor.signals.watched import Watched

_LINES = 16
_CALLS = 512  # that are examined, in sampled steps
_GENERATORS = 4


@dataclass(frozen=True, slots=True)
class RandomCheckpoint:
    """A line with such checkpoints.

    Attributes:
        count: Number of calls with gradients that were examined.
        examined: Number of runs of the function that were examined, in a forward or a backward.
        draws: Number of these that drew random numbers that the checkpoint does not restore.
        source: Where they came from: "default", "own" or "other"; "" without draws.
        site: The line.
    """

    count: int
    examined: int
    draws: int
    source: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class RandomCheckpoints:
    """All such lines."""

    signal: ClassVar[str] = "recomputed"
    lines: tuple[RandomCheckpoint, ...] = ()


@dataclass(slots=True)
class _Line:
    count: int = 0
    examined: int = 0
    draws: int = 0
    source: str = ""
    generators: list[torch.Generator] = field(default_factory=list)


class _Generators(TorchFunctionMode):
    """Finds the generators of the program that calls draw from."""

    def __init__(self, known: list[torch.Generator]) -> None:
        super().__init__()
        self._known = known

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        generator = (kwargs or {}).get("generator")
        is_new = all(each is not generator for each in self._known)
        if isinstance(generator, torch.Generator) and is_new and len(self._known) < _GENERATORS:
            self._known.append(generator)
        return func(*args, **(kwargs or {}))


@dataclass(slots=True)
class _States:
    """The states of all generators.

    Attributes:
        default: Those of torch, Python and numpy.
        own: Those of the program's own generators, as far as they are known.
    """

    default: RandomState
    own: list[torch.Tensor]

    def sources(self, other: _States) -> set[str]:
        """Return whose states differ from those at another time."""
        python, numpy = other.default.python, other.default.numpy
        own = any(not torch.equal(a, b) for a, b in zip(self.own, other.own, strict=False))
        return {
            name
            for name, differ in (
                ("default", _differ(self.default, other.default)),
                ("other", self.default.differs(python, numpy)),
                ("own", own),
            )
            if differ
        }


class Recomputed(Signal):
    """Compares the states of generators before and after the function, and in both of its runs."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[Mark | None, _Line] = {}
        self._calls = 0

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of both kinds of checkpoints."""
        owner, name = recomputing()
        if hasattr(owner, name):
            yield Hook(owner, name, self.watched.here(self._on_checkpoint))
        yield Hook(checkpoint.CheckpointFunction, "forward", self._forwarding)

    def _on_checkpoint(self, original: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        line = self._line() if torch.is_grad_enabled() else None
        if line is None:
            return original(function, *args, **kwargs)
        # The forward pass runs the function itself, between the two parts of this generator.
        runs: list[tuple[_States, _States]] = []
        restores = kwargs.get("preserve_rng_state", True)
        function = self._examined(function, line, runs, restores=restores)
        return _followed(original(function, *args, **kwargs), line, runs)

    def _forwarding(self, original: Any) -> Any:
        def forward(
            _: type[Any], ctx: Any, function: Any, preserve_rng_state: bool, *args: Any
        ) -> Any:
            recomputes = any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)
            line = self._line() if recomputes and self.watched.is_here() else None
            if line is not None:
                function = self._examined(function, line, [], restores=preserve_rng_state)
            return original.__func__(ctx, function, preserve_rng_state, *args)

        return classmethod(forward)  # A static method cannot name what it wraps.

    def _line(self) -> _Line | None:
        """Return the line of a checkpoint if this call of it is examined."""
        if self._calls >= _CALLS or not is_sampled(self.watched.grammar.made + 1):
            return None
        with self.watched.guard.own():
            self._calls += 1
            mark = calling_line()
            if mark in self._lines or len(self._lines) < _LINES:
                line = self._lines.setdefault(mark, _Line())
                line.count += 1
                return line
        return None

    def _examined(
        self,
        function: Callable[..., Any],
        line: _Line,
        runs: list[tuple[_States, _States]],
        *,
        restores: bool,
    ) -> Callable[..., Any]:
        guard = self.watched.guard

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or guard.is_own or _is_capturing():
                return function(*args, **kwargs)
            # A backward pass may run in another thread, which the loop waits for.
            with guard.own() if guard.is_here else nullcontext():
                before = _states(line)
            try:
                with _Generators(line.generators):
                    return function(*args, **kwargs)
            finally:  # A backward pass leaves the function as soon as it has what it needs.
                with guard.own() if guard.is_here else nullcontext():
                    runs.append((before, _states(line)))
                    line.examined += 1
                    sources = _sources(runs[0], runs[-1])
                    if not restores:
                        sources |= before.sources(runs[-1][1]) & {"default"}
                    else:
                        sources -= {"default"}
                    line.draws += bool(sources)
                    line.source = line.source or min(sources, default="")

        return call

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        lines = tuple(
            RandomCheckpoint(line.count, line.examined, line.draws, line.source, site(mark))
            for mark, line in self._lines.items()
            if line.draws
        )
        return {RandomCheckpoints.signal: RandomCheckpoints(lines)}


def _differ(before: RandomState, after: RandomState) -> bool:
    if not torch.equal(before.cpu, after.cpu):
        return True
    return any(not torch.equal(a, b) for a, b in zip(before.cuda, after.cuda, strict=False))


def _states(line: _Line) -> _States:
    own = [each.get_state() for each in line.generators]
    return _States(random_state(everything=True), own)


def _followed(
    generator: Iterator[None], line: _Line, runs: list[tuple[_States, _States]]
) -> Iterator[None]:
    """Take the states of generators before and after the forward pass of a checkpoint."""
    for part in generator:
        before = _states(line)
        yield part
        runs.append((before, _states(line)))


def _sources(first: tuple[_States, _States], again: tuple[_States, _States]) -> set[str]:
    """Return whose numbers are other ones in the second run of a function than in the first."""
    # A function that seeds its generators itself ends in the same state.
    pairs = (first, again, (first[0], again[0]), (first[1], again[1]))
    return set.intersection(*(one.sources(other) for one, other in pairs))


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
