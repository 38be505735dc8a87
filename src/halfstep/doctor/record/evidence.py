"""The one record of evidence: everything that was observed of a program, as plain frozen data.

Watching fills it, rules read nothing else, and it goes through JSON without a loss, so that a
verdict can be reached elsewhere and later. Each field of `Evidence` is a **signal**; a rule names
those that it needs and sees only them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from halfstep.doctor.record.loop import Loop
from halfstep.doctor.record.replayed import (
    Bad,
    BadGradients,
    Birth,
    Precision,
    Replay,
)
from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.doctor.record.static import Environment, Static

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The numbers of one step of one optimizer.

    Attributes:
        iteration: Counted from 0.
        optimizer: Its place in `Static.optimizers`.
        loss: What backward was called on, without its loss scale; None when it was not seen.
        gradient_norm: L2 norm of what the optimizer was given; None when it did not step, or
            where a sample of them was finite and told enough.
        scale: The loss scale of the step; None without a scaler.
        skipped: Whether the scaler kept the optimizer from stepping.
        learning_rate: Of its first group.
    """

    iteration: int
    optimizer: int
    loss: float | None
    gradient_norm: float | None
    scale: float | None
    skipped: bool
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Numbers:
    """The always-on numbers.

    Attributes:
        steps: The first and the latest steps; those between are thinned out.
        skips: Steps skipped by a scaler.
        longest_run_of_skips: Most in a row.
        smallest_scale: The smallest loss scale seen.
        first_bad: The first step whose loss or gradients were not finite; None without one.
    """

    steps: tuple[StepNumbers, ...] = ()
    skips: int = 0
    longest_run_of_skips: int = 0
    smallest_scale: float | None = None
    first_bad: StepNumbers | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One parameter of one step, looked at closely every so often.

    Attributes:
        iteration: Counted from 0.
        optimizer: Its place in `Static.optimizers`.
        parameter: Its name.
        format: Its format.
        gradient_format: The format of its gradient.
        gradient_largest: Largest magnitude of its gradient.
        gradient_zeros: Share of its gradient that is exactly zero.
        gradient_subnormal: Share of what is not zero that fp16 has no normal number for.
        unchanged: Share of its elements that had a gradient and did not change in the step.
        relative_update: Norm of the update over the norm of the parameter.
    """

    iteration: int
    optimizer: int
    parameter: str
    format: str
    gradient_format: str
    gradient_largest: float
    gradient_zeros: float
    gradient_subnormal: float
    unchanged: float
    relative_update: float


@dataclass(frozen=True, slots=True)
class Call:
    """A function of torch, or a model or loss module, that the loop called.

    Attributes:
        name: Its name in torch ("cross_entropy"), or the module's class ("BCELoss").
        formats: Formats of the floating-point tensors that it was given.
        result: Format of its first floating-point result; "" without one.
        gradients: Whether gradients were recorded.
        autocast: Format of the autocast that it ran under; "" without.
        count: How often.
        site: The first line that called it.
        rounded: Whether its first input, in fp32, holds numbers of autocast's format alone: it was
            widened too late. Looked at where torch has no safe half form of a function.
    """

    name: str
    formats: tuple[str, ...]
    result: str
    gradients: bool
    autocast: str
    count: int
    site: Site | None
    rounded: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Calls of models in evaluation mode or without gradients.

    Attributes:
        calls: How many.
        bad: How many gave inf or NaN.
        first_bad: The iteration after which the first of them ran; None without one.
        formats: Formats of their outputs.
    """

    calls: int = 0
    bad: int = 0
    first_bad: int | None = None
    formats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Saved:
    """Checkpoints that one line saved.

    Attributes:
        optimizer: Whether the state of an optimizer is in them.
        scaler: Whether that of a gradient scaler is.
        count: How many.
        site: The line.
    """

    optimizer: bool
    scaler: bool
    count: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class Average:
    """A half tensor that follows a parameter.

    Attributes:
        parameter: The parameter's name.
        format: The average's.
        updates: How often it was written.
        lagging: Elements, over all updates, that were away from the parameter.
        stuck: How many of those an update did not change.
        site: The line that writes it.
    """

    parameter: str
    format: str
    updates: int
    lagging: int
    stuck: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class Grown:
    """The size of a parameter before the first step, and at the first bad one.

    Attributes:
        parameter: Its name.
        before: Its L2 norm before any step.
        after: Its L2 norm at the bad step.
    """

    parameter: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Growth:
    """How far training had moved the parameters when a step went bad.

    Attributes:
        iteration: The bad step; -1 without one.
        parameters: Those that had been there from the start.
    """

    iteration: int = -1
    parameters: tuple[Grown, ...] = ()

    @property
    def factor(self) -> float:
        """How many times larger they were, all together; 1 where that is unknown."""
        finite = [each for each in self.parameters if math.isfinite(each.after)]
        before = math.hypot(*(each.before for each in finite))
        return math.hypot(*(each.after for each in finite)) / before if before else 1.0


@dataclass(frozen=True, slots=True)
class ElsewhereCall:
    """Calls of a model for training in another thread than the loop's.

    Attributes:
        kind: The model's class.
        autocast: Format of the autocast that it ran under; "" without.
        loop_autocast: Format of the autocast that the loop was under at that time; "" without.
        count: How many.
        site: The first line that called it.
    """

    kind: str
    autocast: str
    loop_autocast: str
    count: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class HalfOverflow:
    """A half result of the loop in evaluation, outside autocast, that is finite in fp32 only.

    Attributes:
        name: The function's name in torch, or the module's class.
        format: The result's.
        exact: The largest magnitude in fp32.
        count: How often.
        site: The line.
    """

    name: str
    format: str
    exact: float
    count: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class RoundedCount:
    """Whole numbers, positions or timesteps, that were put into a half format that rounds them.

    Attributes:
        format: The format.
        largest: The largest of them.
        count: How many there are.
        distinct: How many different ones are left.
        changed: How many are another number now.
        module: Path of the module that did it; "" outside of one.
        site: The line.
    """

    format: str
    largest: float
    count: int
    distinct: int
    changed: int
    module: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class Ending:
    """The exception that ended the program.

    Attributes:
        kind: Its class; "" for a program that ended well.
        message: What it said.
        function: The program's own autograd function that it was raised in; "" for none.
        site: The user's line that it came through.
        in_optimizer: Whether it was raised in an optimizer of torch's.
    """

    kind: str = ""
    message: str = ""
    site: Site | None = None
    function: str = ""
    in_optimizer: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a program; each field is a signal.

    Attributes:
        signals: Names of the signals that could be had; the other fields are empty.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(ser_json_inf_nan="strings")

    signals: frozenset[str] = frozenset()
    environment: Environment = field(default_factory=Environment)
    static: Static = field(default_factory=Static)
    loop: Loop = field(default_factory=Loop)
    numbers: Numbers = field(default_factory=Numbers)
    samples: tuple[Sample, ...] = ()
    births: tuple[Birth, ...] = ()
    replays: tuple[Replay, ...] = ()
    precision: Precision = field(default_factory=Precision)
    inputs: tuple[Bad, ...] = ()
    gradients: BadGradients = field(default_factory=BadGradients)
    calls: tuple[Call, ...] = ()
    evaluation: Evaluation = field(default_factory=Evaluation)
    ending: Ending = field(default_factory=Ending)
    saves: tuple[Saved, ...] = ()
    averages: tuple[Average, ...] = ()
    elsewhere: tuple[ElsewhereCall, ...] = ()
    overflows: tuple[HalfOverflow, ...] = ()
    rounded: tuple[RoundedCount, ...] = ()
    growth: Growth = field(default_factory=Growth)

    def only(self, names: frozenset[str]) -> Evidence:
        """Return a record that has these signals and no other."""
        empty = {
            each.name: getattr(_NOTHING, each.name)
            for each in fields(self)
            if each.name not in names and each.name != "signals"
        }
        return replace(self, signals=self.signals & names, **empty)

    def without(self, name: str) -> Evidence:
        """Return the record as it would be had one signal not been observed."""
        return self.only(self.signals - {name})

    def lost(self) -> Iterator[Birth]:
        """Yield births in the forward that matter.

        They made the loss or a gradient non-finite; or a division made 0 of an infinity that in
        truth is a number, so that the step is finite and is not the step of fp32.
        """
        for birth in self.births:
            if birth.phase != "forward":
                continue
            if birth.culprit or (birth.is_divided and self._disagrees()):
                yield birth

    def _disagrees(self) -> bool:
        """Return whether the last step, or one that was run again, is not the step of fp32."""
        if self.precision.disagrees:
            return True
        halves = {
            each.iteration: each.loss
            for each in self.replays
            if each.name == "plain" and each.loss is not None and isfinite(each.loss)
        }
        return any(
            Precision(loss=halves.get(each.iteration), exact_loss=each.loss).disagrees
            for each in self.replays
            if each.name == "fp32" and each.finite
        )

    def exact_is_finite(self) -> bool:
        """Return whether a bad step is finite when it is run in fp32."""
        replays = [each for each in self.replays if each.name == "fp32" and not each.note]
        return bool(replays) and replays[0].finite

    def to_json(self) -> str:
        """Return it as JSON; inf and nan are strings."""
        return _ADAPTER.dump_json(self, indent=1).decode()


_NOTHING = Evidence()
SIGNALS = frozenset(each.name for each in fields(Evidence)) - {"signals"}
_ADAPTER: TypeAdapter[Evidence] = TypeAdapter(Evidence)


def from_json(text: str | bytes) -> Evidence:
    """Return the record that `Evidence.to_json` wrote.

    Raises:
        ValueError: If it is not such a record.
    """
    found = _ADAPTER.validate_json(text)
    if not found.signals:
        raise ValueError("no signals: nothing was observed")
    return found


def as_plain(record: Any) -> Any:
    """Return evidence, or a part of it, as dicts, lists, strings and numbers."""
    return TypeAdapter(type(record)).dump_python(record, mode="json")
