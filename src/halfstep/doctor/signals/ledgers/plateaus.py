"""Notes when a scheduler that waits for a plateau was given each of its numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.values.repeated_losses import is_loss_name
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_MOST = 512


@dataclass(frozen=True, slots=True)
class Plateau:
    """The numbers of one scheduler.

    Attributes:
        optimizer: Number of its optimizer.
        mode: Its mode.
        metrics: The numbers, up to 512; NaN for one that is not read.
        iterations: For each of them, the number of iterations before it.
        evaluated: For each of them, the sum of the losses of evaluations since the one before; 0
            if it is not known.
        site: The line that gives them.
    """

    optimizer: int
    mode: str
    metrics: tuple[float, ...]
    iterations: tuple[int, ...]
    evaluated: tuple[float, ...]
    site: Site | None


@dataclass(frozen=True, slots=True)
class Plateaus:
    """All such schedulers."""

    signal: ClassVar[str] = "plateaus"
    schedulers: tuple[Plateau, ...] = ()


@dataclass(slots=True)
class _Note:
    optimizer: int
    mode: str
    metrics: list[float]
    iterations: list[int]
    evaluated: list[float | torch.Tensor]
    mark: Mark | None = None


class PlateauMetrics(Signal):
    """Collects the numbers."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._known: WeakKeyDictionary[Any, _Note] = WeakKeyDictionary()
        self._notes: list[_Note] = []
        self._sum: float | torch.Tensor = 0.0

    def on_call(self, heard: Heard) -> None:
        """Add the loss of a batch of an evaluation, if there is such a scheduler."""
        if self._notes and is_loss_name(heard.name) and isinstance(heard.result, torch.Tensor):
            loss = heard.result
            if not loss.requires_grad and loss.numel() == 1:
                self._sum = self._sum + loss.detach().reshape(())

    def on_schedule(
        self, scheduler: Any, optimizer: Optimizer, mark: Mark | None, given: Any
    ) -> None:
        """Note a number and its iteration."""
        if not isinstance(scheduler, ReduceLROnPlateau):
            return
        note = self._known.get(scheduler)
        if note is None:
            number = self.watched.registry.optimizers.number(optimizer)
            note = self._known[scheduler] = _Note(number, scheduler.mode, [], [], [])
            self._notes.append(note)
        if len(note.metrics) < _MOST:
            note.metrics.append(_value(given))
            note.iterations.append(self.watched.grammar.made)
            note.evaluated.append(self._sum)
            note.mark = mark
        self._sum = 0.0

    def freeze(self) -> dict[str, Any]:
        """Return the numbers of all schedulers."""
        found = [
            Plateau(
                each.optimizer,
                each.mode,
                (*each.metrics,),
                (*each.iterations,),
                (*map(float, each.evaluated),),
                site(each.mark),
            )
            for each in self._notes
        ]
        return {Plateaus.signal: Plateaus(tuple(found))}


def _value(metric: Any) -> float:
    if isinstance(metric, torch.Tensor):
        is_known = metric.device.type == "cpu" and metric.numel() == 1
        return float(metric) if is_known else math.nan
    return float(metric) if isinstance(metric, int | float) else math.nan
