"""The ledger of learning rates: what was planned, and what happened in the steps.

Each step of an optimizer is counted with its rates, which are compared with those that its groups
were given when it was made, or that a load has put in their place. Each scheduler is counted with
its moves, and with the steps that use its rates. Rates that are tensors on an accelerator are not
read.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    LRScheduler,
    ReduceLROnPlateau,
    SequentialLR,
)

from halfstep.doctor.internals import last_part
from halfstep.doctor.record.rates import LearningRates, Rates, Schedule
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.record.source import only_line_with, statement
from halfstep.doctor.signals.signal import Hook, Signal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.watched import Watched

_LENGTHS = ("total_steps", "T_max", "total_iters", "T_0")
_ATTEMPTS = {"scaler step", "drop"}
_METRICS = 512
_WRITES_RATE = r"""\[\s*(["'])lr\1\s*\]\s*[-+*/]?=(?!=)"""


@dataclass(slots=True)
class _Given:
    """The rates of the groups of a new optimizer."""

    rates: list[float]
    default: float
    made: Mark | None


@dataclass(slots=True)
class _Rates:
    steps: int = 0
    due: int = 0
    backwards: int = 0  # backward passes, of any model, before the last step that was due
    given: _Given | None = None
    values: list[float] = field(default_factory=list)  # of the groups, in the last step
    peaks: list[float] = field(default_factory=list)
    equal: int = 0
    are_equal: bool = False
    planned: float = math.nan
    in_load: list[float] = field(default_factory=list)  # the rates of a loaded state, while used
    held: int = 0
    since: int = 0  # steps since the load
    above: bool = False  # whether the first group had a larger rate than the loaded one in them
    loaded: Mark | None = None
    zeros: list[int] = field(default_factory=list)  # first and last iteration, and count
    moving: list[int] = field(default_factory=list)
    last_moving: float = 0.0
    largest: float = 0.0
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
    backwards: int
    others: int  # steps of other optimizers that were due when it was made, or moved last
    own: int = 0  # the same of its own optimizer
    first: int = 0
    last: int = 0
    planned: int | None = None
    position: float = 0.0
    furthest: float = 0.0
    backs: int = 0
    idle: int = 0
    successor: int = -1
    mode: str = ""
    metrics: list[float] = field(default_factory=list)
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
        self._given: WeakKeyDictionary[Optimizer, _Given] = WeakKeyDictionary()
        self._backwards = 0
        self._due = 0
        self._latest = -1  # the optimizer whose step was due last

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the ways in which optimizers and schedulers get rates and states."""
        yield Hook(Optimizer, "__init__", self.watched.afterwards(self._on_optimizer))
        yield Hook(Optimizer, "add_param_group", self.watched.afterwards(self._on_group))
        yield Hook(LRScheduler, "__init__", self.watched.afterwards(self._on_made))
        for other in (ReduceLROnPlateau, SequentialLR, ChainedScheduler):
            yield Hook(other, "__init__", self.watched.afterwards(self._on_other))
        for kind in {LRScheduler, *_all_subclasses(LRScheduler)}:
            if "load_state_dict" in vars(kind):
                yield Hook(kind, "load_state_dict", self.watched.afterwards(self._on_restored))

    def _on_optimizer(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            rates = [_value(each.get("lr")) for each in optimizer.param_groups]
            self._given[optimizer] = _Given(rates, _default_rate(type(optimizer)), calling_line())

    def _on_group(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            if optimizer in self._given:  # otherwise, its constructor has not ended
                given = self._given[optimizer]
                given.rates.append(_value(optimizer.param_groups[-1].get("lr")))

    def _on_made(self, scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
        with self.watched.guard.own():
            start = args[1] if len(args) > 1 else kwargs.get("last_epoch", -1)
            self._note(scheduler, calling_line()).restored = start != -1

    def _on_other(self, scheduler: LRScheduler, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            self._note(scheduler, calling_line())

    def _on_restored(self, scheduler: LRScheduler, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            schedule = self._note(scheduler, calling_line())
            schedule.restored = True
            schedule.first = schedule.last = scheduler.last_epoch
            schedule.furthest = max(schedule.furthest, scheduler.last_epoch)

    def _note(self, scheduler: LRScheduler, mark: Mark | None) -> _Schedule:
        known = self._known.get(scheduler)
        if known is None:
            optimizer = scheduler.optimizer
            self.watched.registry.optimizer(optimizer)
            number = self.watched.registry.optimizers.number(optimizer)
            rates, group = self._of(number), optimizer.param_groups[0]
            initial = _value(group.get("initial_lr", 0.0))
            mode = scheduler.mode if isinstance(scheduler, ReduceLROnPlateau) else ""
            known = _Schedule(
                number,
                type(scheduler).__name__,
                mark,
                rates.due,
                below=not mode and not rates.loaded and _value(group["lr"]) < initial,
                backwards=self._backwards,
                others=self._due - rates.due,
                own=rates.due,
                mode=mode,
                first=scheduler.last_epoch,
                last=scheduler.last_epoch,
                planned=_planned(scheduler),
            )
            self._known[scheduler] = known
            self._schedules.append(known)
            rates.largest = max(rates.largest, initial)
        return known

    def _of(self, number: int) -> _Rates:
        return self._rates.setdefault(number, _Rates())

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Count a backward pass, and a step that is due, whether or not it is skipped."""
        del mark
        self._backwards += kind == "backward"
        if kind in _ATTEMPTS or (kind == "step" and not facts["by_scaler"]):
            number = facts["optimizer"]
            assert isinstance(number, int)
            rates = self._of(number)
            rates.due, rates.backwards = rates.due + 1, self._backwards
            self._due += 1
            self._latest = number

    def on_schedule(
        self, scheduler: Any, optimizer: Optimizer, mark: Mark | None, given: Any
    ) -> None:
        """Note the line that moves a scheduler, and where to."""
        del optimizer
        if not isinstance(scheduler, LRScheduler):
            return
        schedule = self._note(scheduler, mark)
        schedule.mark = mark
        schedule.restored |= scheduler.last_epoch > schedule.last  # set by hand, or by step(epoch)
        schedule.last, schedule.planned = scheduler.last_epoch + 1, _planned(scheduler)
        schedule.after_resume |= self._of(schedule.optimizer).resumed
        position = float(schedule.last)
        if schedule.mode:
            schedule.metrics += [_value(given)] if len(schedule.metrics) < _METRICS else []
        elif not math.isnan(_value(given)):
            position = _value(given)
            schedule.backs += position < schedule.position
        schedule.position = position
        schedule.furthest = max(schedule.furthest, position)
        self._follow(schedule)

    def _follow(self, schedule: _Schedule) -> None:
        """Count a move that follows steps of another optimizer alone."""
        own = self._of(schedule.optimizer).due
        others = self._due - own
        if own > schedule.own:
            schedule.idle = 0
        elif others > schedule.others:
            schedule.idle += 1
            schedule.successor = (
                self._latest if self._replaces(self._latest, schedule.optimizer) else -1
            )
        schedule.own, schedule.others = own, others

    def _replaces(self, new: int, old: int) -> bool:
        """Return whether an optimizer is of the class of another one, and has its parameters."""
        alive = self.watched.registry.optimizers.alive()
        if new not in alive or old not in alive or type(alive[new]) is not type(alive[old]):
            return False
        first, second = (
            [each for group in alive[number].param_groups for each in group["params"]]
            for number in (old, new)
        )
        shared = not {*map(id, first)}.isdisjoint(map(id, second))
        return shared or [each.shape for each in first] == [each.shape for each in second]

    def on_loaded(self, optimizer: Optimizer, mark: Mark | None) -> None:
        """Note the rates that a state brings, and whether a scheduler had moved them."""
        rates = self._of(self.watched.registry.optimizers.number(optimizer))
        group = optimizer.param_groups[0]
        rates.rate = _value(group["lr"])
        rates.resumed = "initial_lr" in group and rates.rate != _value(group["initial_lr"])
        rates.in_load = [_value(each["lr"]) for each in optimizer.param_groups]
        rates.loaded, rates.held = mark, 0
        rates.since, rates.above = 0, False

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Count a step at its rates."""
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
        rates.mark = mark
        if values != rates.values:
            rates.changes += rates.steps > 1 and values[0] != rates.values[0]
            rates.given = self._given.get(optimizer)
            rates.planned = _value(optimizer.param_groups[0].get("initial_lr"))
            rates.are_equal = len(values) > 1 and min(values) == largest
            same = len(rates.peaks) == len(values)
            rates.peaks = [*map(max, values, rates.peaks)] if same else values
            rates.values = values
        rates.equal += rates.are_equal
        if rates.loaded is not None:
            rates.since += 1
            rates.above |= values[0] > rates.rate
        if rates.in_load:
            rates.held = rates.held + 1 if values == rates.in_load else 0
            rates.in_load = rates.in_load if rates.held else []

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
                        backwards=max(0, self._of(each.optimizer).backwards - each.backwards),
                        furthest=each.furthest,
                        backs=each.backs,
                        idle=each.idle,
                        successor=each.successor,
                        mode=each.mode,
                        metrics=tuple(each.metrics),
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
        held=rates.held,
        since=rates.since,
        above=rates.above,
        given=tuple(rates.given.rates) if rates.given else (),
        is_default=rates.given is not None and _is_default(rates.given),
        peaks=tuple(rates.peaks),
        last=rates.values[0] if rates.values else math.nan,
        equal=rates.equal,
        planned=rates.planned,
        made=site(rates.given.made) if rates.given else None,
        loaded=site(rates.loaded),
        site=site(rates.mark),
        written=site(only_line_with(_WRITES_RATE, rates.mark)),
    )


def _planned(scheduler: LRScheduler) -> int | None:
    if isinstance(scheduler, SequentialLR):
        part, start = last_part(scheduler)
        length = _planned(part)
        return None if length is None else start + length
    lengths = [getattr(scheduler, name, None) for name in _LENGTHS]
    return next((each for each in lengths if isinstance(each, int)), None)


def _value(rate: Any) -> float:
    """Return a rate; NaN if it is unknown, as reading it would wait for an accelerator."""
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" and rate.numel() == 1 else math.nan
    return float(rate) if isinstance(rate, int | float) else math.nan


def _is_default(given: _Given) -> bool:
    """Return whether the program names no rate: it may also name one that equals the default."""
    return {*given.rates} == {given.default} and "lr" not in statement(given.made)


def _default_rate(kind: type[Optimizer]) -> float:
    """Return the rate of an optimizer that is made without one; NaN if it must be given."""
    try:
        parameter = inspect.signature(kind).parameters.get("lr")
    except (TypeError, ValueError):
        return math.nan
    return math.nan if parameter is None else _value(parameter.default)


def _all_subclasses(kind: type[Any]) -> set[type[Any]]:
    return {each for child in kind.__subclasses__() for each in ({child} | _all_subclasses(child))}
