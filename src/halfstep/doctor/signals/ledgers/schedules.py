"""The ledger of learning rates: the plans of schedulers, and what became of them."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from dataclasses import field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch.optim.lr_scheduler import (
    ChainedScheduler,
    LambdaLR,
    LRScheduler,
    ReduceLROnPlateau,
    SequentialLR,
)

from halfstep.doctor.internals import last_part
from halfstep.doctor.record.blocks import begins, following, loop
from halfstep.doctor.record.rates import LearningRates, Schedule, assigned_name
from halfstep.doctor.record.sites import Mark, calling_line, is_of_user, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.record.uses import attributes_of
from halfstep.doctor.signals.frozen import frozen
from halfstep.doctor.signals.ledgers.rates import StepRates, value_of
from halfstep.doctor.signals.signal import Hook, Signal, defining
from halfstep.doctor.signals.state.facts import innermost
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer

    from halfstep.doctor.signals.watched import Watched

_LENGTHS = ("total_steps", "T_max", "total_iters", "T_0")
_METRICS = 512
_FAR, _SOME = 2**20, 64  # moves; of those that were made, so many are examined


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
    settles: int | None = None
    functions: tuple[Callable[[int], float], ...] = ()  # until it is known where they settle
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


class Schedules(Signal):
    """Counts the moves of each scheduler, and the steps that use its rates."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._rates = watched[StepRates]
        self._schedules: list[_Schedule] = []
        self._known: WeakKeyDictionary[LRScheduler, _Schedule] = WeakKeyDictionary()

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the ways in which schedulers get rates and states."""
        yield Hook(LRScheduler, "__init__", self.watched.afterwards(self._on_made))
        for other in (ReduceLROnPlateau, SequentialLR, ChainedScheduler):
            yield Hook(other, "__init__", self.watched.afterwards(self._on_other))
        for kind in defining("load_state_dict", LRScheduler):
            yield Hook(kind, "load_state_dict", self.watched.afterwards(self._on_restored))

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
            for each in self._schedules:
                if each.last > each.first:  # Its functions may hold a whole training in memory.
                    _settle(each)
            optimizer = innermost(scheduler.optimizer)
            self.watched.registry.optimizer(optimizer)
            number = self.watched.registry.optimizers.number(optimizer)
            rates, group = self._rates.of(number), optimizer.param_groups[0]
            initial = value_of(group.get("initial_lr", 0.0))
            mode = scheduler.mode if isinstance(scheduler, ReduceLROnPlateau) else ""
            known = _Schedule(
                number,
                type(scheduler).__name__,
                mark,
                rates.due,
                below=not mode and not rates.loaded and value_of(group["lr"]) < initial,
                backwards=self._rates.backwards,
                others=self._rates.due - rates.due,
                own=rates.due,
                mode=mode,
                first=scheduler.last_epoch,
                last=scheduler.last_epoch,
                planned=_planned(scheduler),
                functions=(*scheduler.lr_lambdas,) if isinstance(scheduler, LambdaLR) else (),
            )
            self._known[scheduler] = known
            self._schedules.append(known)
            rates.largest = max(rates.largest, initial)
        return known

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
        schedule.after_resume |= self._rates.of(schedule.optimizer).resumed
        position = float(schedule.last)
        if schedule.mode:
            schedule.metrics += [value_of(given)] if len(schedule.metrics) < _METRICS else []
        elif not math.isnan(value_of(given)):
            position = value_of(given)
            schedule.backs += position < schedule.position
        schedule.position = position
        schedule.furthest = max(schedule.furthest, position)
        self._follow(schedule)

    def _follow(self, schedule: _Schedule) -> None:
        """Count a move that follows steps of another optimizer alone."""
        own = self._rates.of(schedule.optimizer).due
        others = self._rates.due - own
        if own > schedule.own:
            schedule.idle = 0
        elif others > schedule.others:
            schedule.idle += 1
            schedule.successor = (
                self._rates.latest if self._replaces(self._rates.latest, schedule.optimizer) else -1
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

    def freeze(self) -> dict[str, Any]:
        """Return the ledger."""
        schedules = tuple(map(self._frozen, self._schedules))
        return {LearningRates.signal: LearningRates(self._rates.frozen(), schedules)}

    def _frozen(self, schedule: _Schedule) -> Schedule:
        rates = self._rates.of(schedule.optimizer)
        _settle(schedule)
        return frozen(
            Schedule,
            schedule,
            moves=schedule.last - schedule.first,
            steps=rates.due - schedule.due,
            backwards=max(0, rates.backwards - schedule.backwards),
            made=site(begins(schedule.made) or schedule.made),
            made_by=statement(schedule.made),
            site=site(schedule.mark),
            later=site(_after_loop(schedule.mark)),
            unused=schedule.mark is None and _is_unused(schedule.made),
        )


def _is_unused(made: Mark | None) -> bool:
    """Return whether no line of the program moves the scheduler of a line, or passes it on."""
    name = assigned_name(statement(made)).rpartition(".")[2]
    if made is None or not name:
        return False
    modules = {getattr(each, "__file__", None) or "" for each in [*sys.modules.values()]}
    files = {made[0], *(each for each in modules if each.endswith(".py") and is_of_user(each))}
    used = attributes_of(name, sorted(files))
    return used is not None and "step" not in used


def _after_loop(mark: Mark | None) -> Mark | None:
    """Return the statement that follows the innermost loop around a line; None without one."""
    around = loop(mark, set())
    return following(around) if around != begins(mark) else None


def _planned(scheduler: LRScheduler) -> int | None:
    if isinstance(scheduler, SequentialLR):
        part, start = last_part(scheduler)
        length = _planned(part)
        return None if length is None else start + length
    lengths = [getattr(scheduler, name, None) for name in _LENGTHS]
    return next((each for each in lengths if isinstance(each, int)), None)


def _settle(schedule: _Schedule) -> None:
    """Find out where the functions of a scheduler settle, and forget them."""
    if schedule.functions:
        schedule.settles = _settles(schedule.functions, schedule.last)
        schedule.functions = ()


def _settles(functions: tuple[Callable[[int], float], ...], position: int) -> int | None:
    """Return the position from which on functions of groups stay the same; None if unknown."""
    if len({id(each) for each in functions}) != 1:
        return None
    function = functions[0]
    try:
        end = function(_FAR)
        if any(function(_FAR + each) != end for each in (1, _FAR)):
            return None
        some = range(position, -1, -max(1, position // _SOME))
        before = next((each for each in some if function(each) != end), None)
        if before is None:
            return None
        return bisect_left(range(_FAR), 1, before, key=lambda each: int(function(each) == end))
    except Exception:  # noqa: BLE001  (it is the user's, and may know no position after the last)
        return None
