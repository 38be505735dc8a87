"""Calls of models with gradients in training mode whose results no backward pass uses.

So is an evaluation without `torch.no_grad()` and without `eval()`: several calls in a row of a line
whose results no step uses, in a few of the iterations.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from halfstep.doctor.internals import tracks_statistics
from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tape.modules import unwrapped
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.signals.watched import Watched
    from halfstep.doctor.tape.tape import Entry

_EXAMINED = 64  # iterations
_FEWEST = 2  # calls in an iteration


@dataclass(frozen=True, slots=True)
class UnusedCalls:
    """A line whose calls of a model no step has used.

    Attributes:
        model: Number of the model.
        norms: Classes of the norms in training mode that track statistics.
        count: Number of calls.
        iterations: Number of iterations with such calls, before a step.
        steps: Number of all steps.
        site: The line.
    """

    model: int
    norms: tuple[str, ...]
    count: int
    iterations: int
    steps: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class Unused:
    """All such lines."""

    signal: ClassVar[str] = "unused calls"
    lines: tuple[UnusedCalls, ...] = ()


@dataclass(slots=True)
class _Line:
    model: weakref.ref[nn.Module]
    norms: tuple[str, ...]
    count: int = 0
    iterations: int = 0


class UnusedResults(Signal):
    """Compares the calls on the tape with those that its backward passes depend on."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[tuple[int, Mark | None], _Line] = {}
        self._used: set[tuple[int, Mark | None]] = set()
        self._last = self._examined = self._steps = 0

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Look for such calls if this iteration has more or fewer calls than the one before."""
        del optimizer, number, mark
        self._steps += 1
        calls = [each for each in self.watched.tape.entries if each.kind == "module"]
        before, self._last = self._last, len(calls)
        if len(calls) in {before, 0} or self._examined >= _EXAMINED:
            return
        self._examined += 1
        used = set(map(id, self.watched.tape.snapshot()))
        self._used |= {_key(each) for each in calls if id(each) in used}
        unused = [each for each in calls if id(each) not in used and _is_in_training(each)]
        models = {id(each.function) for each in calls if id(each) in used}
        counts = Counter(_key(each) for each in unused if id(each.function) in models)
        for each in unused:
            count = counts.pop(_key(each), 0)
            if count >= _FEWEST:
                line = self._lines.setdefault(
                    _key(each), _Line(weakref.ref(each.function), tuple(_norms(each.function)))
                )
                line.count += count
                line.iterations += 1

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        return {Unused.signal: Unused(tuple(self._found()))}

    def _found(self) -> Iterator[UnusedCalls]:
        for key, line in self._lines.items():
            model = line.model()
            if model is not None and key not in self._used:
                yield UnusedCalls(
                    model=self.watched.registry.models.number(model),
                    norms=line.norms,
                    count=line.count,
                    iterations=line.iterations,
                    steps=self._steps,
                    site=site(key[1]),
                )


def _key(entry: Entry) -> tuple[int, Mark | None]:
    return id(entry.function), entry.mark


def _is_in_training(entry: Entry) -> bool:
    return entry.has_gradients and any(
        is_training and tracks_statistics(each)
        for each, is_training in zip(entry.modules, entry.training, strict=False)
    )


def _norms(model: nn.Module) -> list[str]:
    norms = (each for each in unwrapped(model).modules() if tracks_statistics(each))
    return sorted({type(each).__name__ for each in norms if each.training})
