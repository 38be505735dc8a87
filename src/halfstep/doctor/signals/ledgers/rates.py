"""The ledger of learning rates: the rates of optimizers in their steps.

Each step of an optimizer is counted with its rates, which are compared with those that its groups
were given when it was made, or that a load has put in their place. Rates that are tensors on an
accelerator are not read. `schedules.py` adds the schedulers, and freezes the ledger.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from dataclasses import field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from halfstep.doctor.record.blocks import begins
from halfstep.doctor.record.rates import LOW, Rates
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.record.source import only_line_with, statement
from halfstep.doctor.signals.frozen import frozen
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.watched import Watched

_ROUNDING = 1e-6
_COURSE = 2**16
_MIRRORED = 1e-3  # of the largest rate: how far both sides of a valley may differ
_SIDE = 3  # rates on a side of it
_ATTEMPTS = {"scaler step", "drop"}
_WRITES_RATE = r"""\[\s*(["'])lr\1\s*\]\s*[-+*/]?=(?!=)"""


@dataclass(slots=True)
class _Given:
    """The rates of the groups of a new optimizer."""

    rates: list[float]
    default: float
    made: Mark | None


@dataclass(slots=True)
class RateAccount:
    """The rates of one optimizer, and its steps that were due, whether or not they were skipped."""

    steps: int = 0
    due: int = 0
    backwards: int = 0  # backward passes, of any model, before the last step that was due
    given: _Given | None = None
    values: list[float] = field(default_factory=list)  # of the groups, in the last step
    peaks: list[float] = field(default_factory=list)
    low_from: int = -1
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
    falls: bool = False
    valley: float = math.inf
    valley_at: int = -1
    turns: int = 0
    leap: float = 0.0
    course: list[float] = field(default_factory=list)  # of the first group, without repetitions
    resumed: bool = False
    rate: float = math.nan
    mark: Mark | None = None


class StepRates(Signal):
    """Counts the steps of each optimizer at each rate.

    Attributes:
        backwards: Number of backward passes, of any model.
        due: Number of steps that were due, of any optimizer.
        latest: Number of the optimizer whose step was due last; -1 without one.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._rates: defaultdict[int, RateAccount] = defaultdict(RateAccount)
        self._given: WeakKeyDictionary[Optimizer, _Given] = WeakKeyDictionary()
        self.backwards = self.due = 0
        self.latest = -1
        self._before_load = math.nan

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the ways in which optimizers get rates."""
        yield Hook(Optimizer, "__init__", self.watched.afterwards(self._on_optimizer))
        yield Hook(Optimizer, "add_param_group", self.watched.afterwards(self._on_group))
        yield Hook(Optimizer, "load_state_dict", self.watched.here(self._on_load))

    def _on_optimizer(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            rates = [value_of(each.get("lr")) for each in optimizer.param_groups]
            self._given[optimizer] = _Given(rates, _default_rate(type(optimizer)), calling_line())

    def _on_group(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            if optimizer in self._given:  # otherwise, its constructor has not ended
                given = self._given[optimizer]
                given.rates.append(value_of(optimizer.param_groups[-1].get("lr")))

    def _on_load(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with self.watched.guard.own():
            self._before_load = value_of(optimizer.param_groups[0].get("lr"))
        return original(optimizer, *args, **kwargs)

    def of(self, number: int) -> RateAccount:
        """Return the rates of an optimizer."""
        return self._rates[number]

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Count a backward pass, and a step that is due, whether or not it is skipped."""
        del mark
        self.backwards += kind == "backward"
        if kind in _ATTEMPTS or (kind == "step" and not facts["by_scaler"]):
            number = facts["optimizer"]
            assert isinstance(number, int)
            rates = self.of(number)
            rates.due, rates.backwards = rates.due + 1, self.backwards
            self.due += 1
            self.latest = number

    def on_loaded(self, optimizer: Optimizer, mark: Mark | None) -> None:
        """Note the rates that a state brings, and whether a scheduler had moved them."""
        rates = self.of(self.watched.registry.optimizers.number(optimizer))
        group = optimizer.param_groups[0]
        rates.rate = value_of(group["lr"])
        # Accelerate loads the optimizer's own state into it again, to move it to a device.
        is_moved = "initial_lr" in group and rates.rate != value_of(group["initial_lr"])
        rates.resumed = is_moved and rates.rate != self._before_load
        rates.in_load = [value_of(each["lr"]) for each in optimizer.param_groups]
        rates.loaded, rates.held = mark, 0
        rates.since, rates.above = 0, False

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Count a step at its rates."""
        rates = self.of(number)
        values = [value_of(group.get("lr")) for group in optimizer.param_groups]
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
            _follow(rates, values[0])
            rates.changes += rates.steps > 1 and values[0] != rates.values[0]
            rates.given = self._given.get(optimizer)
            rates.planned = value_of(optimizer.param_groups[0].get("initial_lr"))
            rates.are_equal = len(values) > 1 and min(values) == largest
            same = len(rates.peaks) == len(values)
            rates.peaks = [*map(max, values, rates.peaks)] if same else values
            rates.values = values
            if values[0] > LOW * rates.peaks[0] * (1 + _ROUNDING):
                rates.low_from = -1
            elif rates.low_from < 0:
                rates.low_from = rates.steps - 1
        rates.equal += rates.are_equal
        if rates.loaded is not None:
            rates.since += 1
            rates.above |= values[0] > rates.rate
        if rates.in_load:
            rates.held = rates.held + 1 if values == rates.in_load else 0
            rates.in_load = rates.in_load if rates.held else []

    def frozen(self) -> tuple[Rates, ...]:
        """Return the rates of all optimizers."""
        return tuple(_frozen(number, each) for number, each in sorted(self._rates.items()))


def _follow(rates: RateAccount, rate: float) -> None:
    """Follow the rate of the first group: where it is lowest after a fall, and how it rises."""
    old = rates.values[0] if rates.values else rate
    if len(rates.course) < _COURSE:
        rates.course.append(rate)
    if rate < old:
        rates.falls = True
        if rate < rates.valley:
            rates.valley, rates.valley_at = rate, rates.steps - 1
    elif rate > old:
        rates.turns += rates.falls
        rates.leap = rate - old if rates.falls else max(rates.leap, rate - old)
        rates.falls = False


def _frozen(number: int, rates: RateAccount) -> Rates:
    zeros, moving, given = rates.zeros or [-1, -1, 0], rates.moving or [-1, -1, 0], rates.given
    return frozen(
        Rates,
        rates,
        number=number,
        zeros=zeros[2],
        zero_from=zeros[0],
        zero_to=zeros[1],
        moving_from=moving[0],
        moving_to=moving[1],
        given=tuple(given.rates) if given else (),
        is_default=given is not None and _is_default(given),
        last=rates.values[0] if rates.values else math.nan,
        made=site(begins(given.made) or given.made) if given else None,
        site=site(rates.mark),
        is_mirrored=_is_mirrored(rates.course),
        written=site(only_line_with(_WRITES_RATE, rates.mark)),
    )


def _is_mirrored(course: list[float]) -> bool:
    """Return whether rates only fall to their lowest, and rise as they have fallen until then."""
    at = course.index(min(course)) if 0 < len(course) < _COURSE else 0
    fall, rise = course[: at + 1][::-1], course[at:]
    pairs = [*zip(fall, rise, strict=False)]
    return (
        min(len(fall), len(rise)) > _SIDE
        and fall == sorted(fall)
        and max(abs(one - other) for one, other in pairs) <= _MIRRORED * max(course)
    )


def value_of(rate: Any) -> float:
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
    return math.nan if parameter is None else value_of(parameter.default)
