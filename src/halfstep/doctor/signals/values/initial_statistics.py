"""Norms that are evaluated with running statistics that are mostly those of their construction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from halfstep.doctor.internals import modules_of, tracks_statistics
from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import torch
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
        batches: The batches that the statistics of the last evaluation have seen, at the end.
        trained: Number of training calls of one of them in training mode before this evaluation.
        left: The share of the values of their construction in these statistics.
        site: The last line that evaluated them.
    """

    kind: str
    momentum: float
    count: int
    batches: int
    trained: int
    left: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class InitialStatistics:
    """All such norms."""

    signal: ClassVar[str] = "initial_statistics"
    norms: tuple[InitialStatistic, ...] = ()


@dataclass(slots=True)
class _Use:
    """The last evaluation with a norm.

    Attributes:
        mark: The line.
        batches: The count of batches of the statistics that it used. They need not be those of the
            norm at the end: `functional_call` runs a norm with others.
        trained: Number of training calls before.
    """

    mark: Mark | None
    batches: torch.Tensor | None
    trained: int


class Evaluated(Signal):
    """Notes the norms that evaluations use in evaluation mode."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._norms: WeakKeyDictionary[nn.Module, _Use] = WeakKeyDictionary()

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Note the norms of a model that the loop calls without gradients."""
        if len(self._norms) < _MOST:
            modes = self.watched.registry.model(module).modes
            places = {id(each): at for at, each in enumerate(modes.dependent)}
            for each in modules_of(module):
                if tracks_statistics(each) and not each.training:
                    calls = modes.in_training(places[id(each)]) if id(each) in places else 0
                    self._norms[each] = _Use(
                        mark, getattr(each, "num_batches_tracked", None), calls
                    )

    def freeze(self) -> dict[str, Any]:
        """Return the norms by class, momentum and batches; reads their counts."""
        groups: dict[tuple[str, float, int], list[_Use]] = {}
        for norm, use in self._norms.items():
            momentum = norm.momentum
            if isinstance(momentum, float) and use.batches is not None:
                key = type(norm).__name__, momentum, int(use.batches)
                groups.setdefault(key, []).append(use)
        found = [
            InitialStatistic(
                kind=kind,
                momentum=momentum,
                count=len(uses),
                batches=n,
                trained=max(each.trained for each in uses),
                left=(1 - momentum) ** n,
                site=site(uses[-1].mark),
            )
            for (kind, momentum, n), uses in groups.items()
        ]
        return {InitialStatistics.signal: InitialStatistics(tuple(found))}
