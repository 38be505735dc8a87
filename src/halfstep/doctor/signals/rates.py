"""The ledger of learning rates: what schedulers plan, and what happens in the steps.

Each step of an optimizer is counted with its rate, and each scheduler with its moves. Rates that
are tensors on an accelerator are not read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch.optim.lr_scheduler import LRScheduler

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.optim import Optimizer

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.watched import Watched

_LENGTHS = ("total_steps", "T_max", "total_iters")
_ATTEMPTS = {"scaler step", "drop"}


@dataclass(frozen=True, slots=True)
class Rates:
    """The learning rates of one optimizer in its steps.

    Attributes:
        number: Number of the optimizer.
        steps: Number of its steps with known rates.
        zeros: Number of these steps at a rate of 0 in each group.
        zero_from: The iteration of the first of them.
        zero_to: The iteration of the last of them.
        moving_from: The iteration of the first step at another rate; -1 without one.
        moving_to: The iteration of the last step at another rate.
        last_moving: The rate of this step; 0 without one.
        largest: The largest rate that a step or a scheduler had.
        changes: How often the rate of the first group changed from one step to the next.
        resumed: Whether a state was loaded whose scheduler had moved the rate.
        rate: The rate of the first group in this state.
        site: The line of the last step.
    """

    number: int
    steps: int = 0
    zeros: int = 0
    zero_from: int = -1
    zero_to: int = -1
    moving_from: int = -1
    moving_to: int = -1
    last_moving: float = 0.0
    largest: float = 0.0
    changes: int = 0
    resumed: bool = False
    rate: float = math.nan
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """One scheduler.

    Attributes:
        optimizer: Number of its optimizer.
        kind: Class of the scheduler.
        planned: Number of moves after which it ends; None if unknown.
        moves: How often it moved, after its construction.
        steps: How often a step of its optimizer was due since then, also one that was skipped.
        restored: Whether a state was loaded into it, or its start was given.
        after_resume: Whether it moved after its optimizer was resumed.
        below: Whether its construction has lowered the rate, as a warm-up does.
        made: The line that made it.
        site: The line that moved it last; None if the loop itself never did.
    """

    optimizer: int
    kind: str
    planned: int | None = None
    moves: int = 0
    steps: int = 0
    restored: bool = False
    after_resume: bool = False
    below: bool = False
    made: Site | None = None
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class LearningRates:
    """The ledger: rates of each optimizer, and each scheduler."""

    signal: ClassVar[str] = "rates"
    optimizers: tuple[Rates, ...] = ()
    schedules: tuple[Schedule, ...] = ()

    def of(self, number: int) -> Rates:
        """Return the rates of an optimizer."""
        return next((each for each in self.optimizers if each.number == number), Rates(number))


@dataclass(slots=True)
class _Rates:
    steps: int = 0
    due: int = 0
    zeros: list[int] = field(default_factory=list)  # first and last iteration, and count
    moving: list[int] = field(default_factory=list)
    last_moving: float = 0.0
    largest: float = 0.0
    last: float = math.nan
    changes: int = 0
    resumed: bool = False
    rate: float = math.nan
    mark: Mark | None = None


@dataclass(slots=True)
class _Schedule:
    optimizer: int
    kind: str
    made: Mark | None
    due: int
    below: bool
    first: int = 0
    last: int = 0
    planned: int | None = None
    restored: bool = False
    after_resume: bool = False
    mark: Mark | None = None


class LearningRateLedger(Signal):
    """Counts the steps at each rate, and the moves of each scheduler."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._rates: dict[int, _Rates] = {}
        self._schedules: list[_Schedule] = []
        self._known: WeakKeyDictionary[LRScheduler, _Schedule] = WeakKeyDictionary()

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the two ways in which a scheduler gets its state."""
        yield Hook(LRScheduler, "__init__", self.watched.afterwards(self._on_made))
        for kind in {LRScheduler, *_all_subclasses(LRScheduler)}:
            if "load_state_dict" in vars(kind):
                yield Hook(kind, "load_state_dict", self.watched.afterwards(self._on_restored))

    def _on_made(self, scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
        with self.watched.guard.own():
            start = args[1] if len(args) > 1 else kwargs.get("last_epoch", -1)
            self._note(scheduler, calling_line()).restored = start != -1

    def _on_restored(self, scheduler: LRScheduler, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            schedule = self._note(scheduler, calling_line())
            schedule.restored = True
            schedule.first = schedule.last = scheduler.last_epoch

    def _note(self, scheduler: LRScheduler, mark: Mark | None) -> _Schedule:
        known = self._known.get(scheduler)
        if known is None:
            optimizer = scheduler.optimizer
            self.watched.registry.optimizer(optimizer)
            number = self.watched.registry.optimizers.number(optimizer)
            group = optimizer.param_groups[0]
            known = _Schedule(
                number,
                type(scheduler).__name__,
                mark,
                self._of(number).due,
                below=_value(group["lr"]) < _value(group.get("initial_lr", 0.0)),
                first=scheduler.last_epoch,
                last=scheduler.last_epoch,
                planned=_planned(scheduler),
            )
            self._known[scheduler] = known
            self._schedules.append(known)
            initial = _value(group.get("initial_lr", 0.0))
            self._of(number).largest = max(self._of(number).largest, initial)
        return known

    def _of(self, number: int) -> _Rates:
        return self._rates.setdefault(number, _Rates())

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Count a step that is due, whether or not it is skipped."""
        del mark
        if kind in _ATTEMPTS or (kind == "step" and not facts["by_scaler"]):
            number = facts["optimizer"]
            assert isinstance(number, int)
            self._of(number).due += 1

    def on_schedule(self, scheduler: Any, optimizer: Optimizer, mark: Mark | None) -> None:
        """Note the line that moves a scheduler."""
        del optimizer
        if isinstance(scheduler, LRScheduler):
            schedule = self._note(scheduler, mark)
            schedule.mark = mark
            schedule.restored |= (
                scheduler.last_epoch > schedule.last
            )  # set by hand, or by step(epoch)
            schedule.last, schedule.planned = scheduler.last_epoch + 1, _planned(scheduler)
            schedule.after_resume |= self._of(schedule.optimizer).resumed

    def on_loaded(self, optimizer: Optimizer, mark: Mark | None) -> None:
        """Note whether a scheduler had moved the rate that an optimizer is given."""
        del mark
        rates = self._of(self.watched.registry.optimizers.number(optimizer))
        group = optimizer.param_groups[0]
        rates.rate = _value(group["lr"])
        rates.resumed = "initial_lr" in group and rates.rate != _value(group["initial_lr"])

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Count a step at its rate."""
        rates = self._of(number)
        values = [_value(group.get("lr")) for group in optimizer.param_groups]
        if any(map(math.isnan, values)):
            return
        iteration, largest = self.watched.grammar.iteration, max(values)
        rates.steps += 1
        seen = rates.moving if largest else rates.zeros
        seen[:] = [seen[0], iteration, seen[2] + 1] if seen else [iteration, iteration, 1]
        rates.last_moving = largest or rates.last_moving
        rates.largest = max(rates.largest, largest)
        rates.changes += rates.steps > 1 and values[0] != rates.last
        rates.last, rates.mark = values[0], mark

    def freeze(self) -> dict[str, Any]:
        """Return the ledger."""
        return {
            LearningRates.signal: LearningRates(
                tuple(_frozen(number, each) for number, each in sorted(self._rates.items())),
                tuple(
                    Schedule(
                        optimizer=each.optimizer,
                        kind=each.kind,
                        planned=each.planned,
                        moves=each.last - each.first,
                        steps=self._of(each.optimizer).due - each.due,
                        restored=each.restored,
                        after_resume=each.after_resume,
                        below=each.below,
                        made=site(each.made),
                        site=site(each.mark),
                    )
                    for each in self._schedules
                ),
            )
        }


def _frozen(number: int, rates: _Rates) -> Rates:
    zeros, moving = rates.zeros or [-1, -1, 0], rates.moving or [-1, -1, 0]
    return Rates(
        number=number,
        steps=rates.steps,
        zeros=zeros[2],
        zero_from=zeros[0],
        zero_to=zeros[1],
        moving_from=moving[0],
        moving_to=moving[1],
        last_moving=rates.last_moving,
        largest=rates.largest,
        changes=rates.changes,
        resumed=rates.resumed,
        rate=rates.rate,
        site=site(rates.mark),
    )


def _planned(scheduler: LRScheduler) -> int | None:
    lengths = [getattr(scheduler, name, None) for name in _LENGTHS]
    return next((each for each in lengths if isinstance(each, int)), None)


def _value(rate: Any) -> float:
    """Return a rate; NaN if it is unknown, as reading it would wait for an accelerator."""
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" and rate.numel() == 1 else math.nan
    return float(rate) if isinstance(rate, int | float) else math.nan


def _all_subclasses(kind: type[Any]) -> set[type[Any]]:
    return {each for child in kind.__subclasses__() for each in ({child} | _all_subclasses(child))}
