"""Norms that are evaluated with running statistics that are mostly those of their construction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch

from halfstep.doctor.internals import modules_of, tracks_statistics
from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from halfstep.doctor.signals.watched import Watched

_MOST = 256
_COPIES = 8


@dataclass(frozen=True, slots=True)
class InitialStatistic:
    """Norms of one class and momentum that are evaluated.

    Attributes:
        kind: Class of the norms.
        momentum: Their momentum.
        count: Number of them.
        batches: The batches that the statistics of the last evaluation have seen, at the end.
        trained: Number of training calls of one of them in training mode before this evaluation.
        elsewhere: Number of such calls of another model with the same parameters, if these have
            no training calls, but weights that a training has changed.
        left: The share of the values of their construction in these statistics.
        site: The last line that evaluated them.
    """

    kind: str
    momentum: float
    count: int
    batches: int
    trained: int
    elsewhere: int
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


@dataclass(slots=True, eq=False)
class _Copy:
    """A norm of a model that is evaluated and was never trained.

    Attributes:
        kind: Its class.
        momentum: Its momentum.
        count: Number of norms of its model.
        weight: Its weight.
        mean: Its running mean.
        variance: Its running variance.
        elsewhere: Number of training calls of a model with the same parameters.
        mark: The line.
    """

    kind: str
    momentum: float
    count: int
    weight: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    elsewhere: int
    mark: Mark | None

    def is_of_construction(self) -> bool:
        """Return whether the weight has been set, and the statistics have not."""
        is_fresh = bool((self.mean == 0).all()) and bool((self.variance == 1).all())
        return is_fresh and bool((self.weight != self.weight[0]).any())


class Evaluated(Signal):
    """Notes the norms that evaluations use in evaluation mode."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._norms: WeakKeyDictionary[nn.Module, _Use] = WeakKeyDictionary()
        self._seen: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._copies: list[_Copy] = []  # They outlive their models.

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Note the norms of a model that the loop calls without gradients."""
        modes = self.watched.registry.model(module).modes
        if modes.dependent and not modes.calls and len(self._copies) < _COPIES:
            seen = self._seen[module] = self._seen.get(module, 0) + 1
            if seen & (seen - 1) == 0:  # a power of 2
                self._copies += self._copied(module, mark)
        if len(self._norms) < _MOST:
            places = {id(each): at for at, each in enumerate(modes.dependent)}
            for each in modules_of(module):
                if tracks_statistics(each) and not each.training:
                    calls = modes.in_training(places[id(each)]) if id(each) in places else 0
                    self._norms[each] = _Use(
                        mark, getattr(each, "num_batches_tracked", None), calls
                    )

    def _copied(self, module: nn.Module, mark: Mark | None) -> Iterator[_Copy]:
        """Yield the first norm of a model, if another one with the same parameters is trained."""
        norms = [each for each in modules_of(module) if tracks_statistics(each)]
        first = next((each for each in norms if getattr(each, "weight", None) is not None), None)
        if first is None or first.training or not isinstance(first.momentum, float):
            return
        weight, mean, variance = first.weight, first.running_mean, first.running_var
        if not isinstance(weight, torch.Tensor) or not weight.numel():
            return
        assert isinstance(mean, torch.Tensor)
        assert isinstance(variance, torch.Tensor)
        mine, shapes = set(map(id, module.parameters())), _shapes(module)
        models = self.watched.registry.models
        for number, other in models.alive().items():
            modes = models.notes[number].modes
            norms_of = [at for at, each in enumerate(modes.dependent) if tracks_statistics(each)]
            calls = max(map(modes.in_training, norms_of), default=0)
            if calls and _shapes(other) == shapes and mine.isdisjoint(map(id, other.parameters())):
                yield _Copy(
                    type(first).__name__,
                    first.momentum,
                    len(norms),
                    weight,
                    mean,
                    variance,
                    calls,
                    mark,
                )
                return

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
                elsewhere=0,
                left=(1 - momentum) ** n,
                site=site(uses[-1].mark),
            )
            for (kind, momentum, n), uses in groups.items()
        ]
        found += [
            InitialStatistic(
                kind=each.kind,
                momentum=each.momentum,
                count=each.count,
                batches=0,
                trained=0,
                elsewhere=each.elsewhere,
                left=1.0,
                site=site(each.mark),
            )
            for each in self._copies
            if each.is_of_construction()
        ]
        return {InitialStatistics.signal: InitialStatistics(tuple(found))}


def _shapes(model: nn.Module) -> list[torch.Size]:
    return [each.shape for each in model.parameters()]
