"""Notes norms whose running statistics are nearly those of the last batch.

In PyTorch, the momentum of a norm is the weight of the new batch; in other frameworks, that of the
statistics so far. For norms with a momentum of 0.9 to 0.999, the statistics after two calls in a
row are nearly those of two batches, so their difference shows how batches scatter.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch

from halfstep.doctor.internals import modules_of, norms_with_statistics, tracks_statistics
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.record.source import only_line_with, statement
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.values.own_norms import OwnNorm, own_norms
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from halfstep.doctor.signals.watched import Watched

_LOWEST, _HIGHEST = 0.9, 0.999
_PROBES = 4  # norms whose statistics are read
_KEPT = 16
_FIRST = 2  # calls, in which the weights change most


@dataclass(frozen=True, slots=True)
class NormMomentum:
    """Norms of one class and momentum that are trained, and evaluated with their statistics.

    Attributes:
        kind: Class of the norms.
        momentum: Their momentum.
        count: Number of them.
        calls: Number of training calls of one of them.
        evaluated: Number of calls in evaluation mode with the statistics of training calls.
        scatter: Standard deviation of the means of batches, divided by that of the values in a
            batch; None if it was not measured.
        site: The line that makes the first of them, or the only one that sets this momentum.
        statement: Source text of its statement.
    """

    kind: str
    momentum: float
    count: int
    calls: int
    evaluated: int
    scatter: float | None
    site: Site | None
    statement: str


@dataclass(frozen=True, slots=True)
class NormMomenta:
    """All such norms."""

    signal: ClassVar[str] = "norm momenta"
    norms: tuple[NormMomentum, ...] = ()


@dataclass(slots=True)
class _Norm:
    """One norm with such a momentum.

    Attributes:
        momentum: Its momentum in the last training call.
        calls: Number of training calls with it.
        others: Number of training calls with another one.
        is_of_last: Whether its statistics are those of such a training call.
        evaluated: Number of its calls in evaluation mode with such statistics.
        mean: Its running mean after the last call, if that one was sampled.
        squares: The squared differences of means, divided by the variance.
        user: The line that called the model.
    """

    momentum: float
    calls: int = 0
    others: int = 0
    is_of_last: bool = False
    evaluated: int = 0
    mean: torch.Tensor | None = None
    squares: deque[torch.Tensor] = field(default_factory=lambda: deque(maxlen=_KEPT))
    user: Mark | None = None


class Momenta(Signal):
    """Follows norms with such a momentum through the calls of their models."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._norms: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()
        self._notes: WeakKeyDictionary[Any, _Norm] = WeakKeyDictionary()
        self._own: WeakKeyDictionary[nn.Module, list[OwnNorm]] = WeakKeyDictionary()
        self._made: WeakKeyDictionary[Any, Mark | None] = WeakKeyDictionary()

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the constructor of norms."""
        made = self.watched.afterwards(self._on_made)
        yield Hook(norms_with_statistics(), "__init__", made)

    def _on_made(self, norm: nn.Module, *_: Any, **__: Any) -> None:
        momentum = norm.momentum
        if isinstance(momentum, float) and _LOWEST <= momentum <= _HIGHEST:
            with self.watched.guard.own():
                self._made[norm] = calling_line()

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Note the norms of a model."""
        del given, made
        norms = self._norms.get(module)
        if norms is None:
            modules = modules_of(module)
            norms = [each for each in modules if tracks_statistics(each)]
            others = [each for each in modules if not tracks_statistics(each)]
            norms += [norm for each in others for norm in self._of(each)]
            self._norms[module] = norms
        for norm in norms:  # A model may have a hundred of them in each step.
            momentum: Any = norm.momentum
            if type(momentum) is float and _LOWEST <= momentum <= _HIGHEST:
                self._note(norm, is_high=True)
            elif self._notes and norm in self._notes:
                self._note(norm, is_high=False)

    def _of(self, module: nn.Module) -> list[OwnNorm]:
        """Return what a module is if it is a norm of the program's own, the same in all models."""
        if module not in self._own:
            self._own[module] = [*own_norms(module)]
        return self._own[module]

    def _note(self, norm: Any, *, is_high: bool) -> None:
        note = self._notes.get(norm)
        if note is None:
            note = self._notes[norm] = _Norm(norm.momentum, user=calling_line())
        if not norm.training:
            note.evaluated += note.is_of_last
            return
        note.is_of_last = is_high and torch.is_grad_enabled()
        if not note.is_of_last:
            note.others += torch.is_grad_enabled()
            note.mean = None
            return
        note.calls += 1
        note.momentum = norm.momentum
        if len(self._notes) > _PROBES and norm not in [*self._notes][:_PROBES]:
            return
        mean, variance = norm.running_mean, norm.running_var
        assert isinstance(mean, torch.Tensor)
        assert isinstance(variance, torch.Tensor)
        if note.mean is not None and note.mean.device == mean.device and note.calls > _FIRST:
            square = (mean.detach().float() - note.mean).square().sum()
            note.squares.append(square / variance.detach().float().sum())
        note.mean = mean.detach().float().clone() if is_sampled(note.calls) else None

    def freeze(self) -> dict[str, Any]:
        """Return the norms by class and momentum."""
        groups: dict[tuple[str, float], list[tuple[Any, _Norm]]] = {}
        for norm, note in self._notes.items():
            if note.calls > note.others and note.evaluated:
                kind = norm.kind if isinstance(norm, OwnNorm) else type(norm).__name__
                groups.setdefault((kind, note.momentum), []).append((norm, note))
        found = []
        for (kind, momentum), norms in groups.items():
            mark = _line(momentum, self._made.get(norms[0][0]), norms[0][1].user)
            squares = [float(each) for _, note in norms for each in note.squares]
            found.append(
                NormMomentum(
                    kind=kind,
                    momentum=momentum,
                    count=len(norms),
                    calls=max(note.calls for _, note in norms),
                    evaluated=max(note.evaluated for _, note in norms),
                    scatter=_scatter(squares),
                    site=site(mark),
                    statement=statement(mark),
                )
            )
        return {NormMomenta.signal: NormMomenta(tuple(found))}


def _line(momentum: float, made: Mark | None, user: Mark | None) -> Mark | None:
    """Return the line that sets a momentum, if it can be found; or the one that makes the norm."""
    if "momentum" in statement(made):
        return made
    number = str(momentum).removeprefix("0").replace(".", r"\.")
    pattern = rf"(?i)^(?!.*(?:optim|sgd|rmsprop)).*momentum\w*\s*=\s*0?{number}\b"
    return only_line_with(pattern, made or user) or made


def _scatter(squares: list[float]) -> float | None:
    """Return the scatter of batches from squared differences of two of them: the median."""
    known = sorted(each for each in squares if each < float("inf"))
    return (known[len(known) // 2] / 2) ** 0.5 if known else None
