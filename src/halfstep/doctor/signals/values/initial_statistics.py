"""Norms that are evaluated with running statistics that are mostly those of their construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from halfstep.doctor.internals import modules_of, tracks_statistics
from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.signal import Signal

if TYPE_CHECKING:
    from torch import nn

    from halfstep.doctor.signals.watched import Watched

_MOST = 256


@dataclass(frozen=True, slots=True)
class InitialStatistic:
    """Norms of one class and momentum that are evaluated.

    Attributes:
        kind: Class of the norms.
        momentum: Their momentum.
        count: Number of them.
        batches: The batches that their statistics have seen, at the end.
        left: The share of the values of their construction in these statistics.
        site: The last line that evaluated them.
    """

    kind: str
    momentum: float
    count: int
    batches: int
    left: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class InitialStatistics:
    """All such norms."""

    signal: ClassVar[str] = "initial_statistics"
    norms: tuple[InitialStatistic, ...] = ()


class Evaluated(Signal):
    """Notes the norms that evaluations use in evaluation mode."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._norms: WeakKeyDictionary[nn.Module, Mark | None] = WeakKeyDictionary()

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Note the norms of a model that the loop calls without gradients."""
        if len(self._norms) < _MOST:
            for each in modules_of(module):
                if tracks_statistics(each) and not each.training:
                    self._norms[each] = mark

    def freeze(self) -> dict[str, Any]:
        """Return the norms by class, momentum and batches; reads their counts."""
        groups: dict[tuple[str, float, int], list[Mark | None]] = {}
        for norm, mark in self._norms.items():
            momentum, batches = norm.momentum, getattr(norm, "num_batches_tracked", None)
            if isinstance(momentum, float) and batches is not None:
                key = type(norm).__name__, momentum, int(batches)
                groups.setdefault(key, []).append(mark)
        found = [
            InitialStatistic(kind, momentum, len(marks), n, (1 - momentum) ** n, site(marks[-1]))
            for (kind, momentum, n), marks in groups.items()
        ]
        return {InitialStatistics.signal: InitialStatistics(tuple(found))}
