"""The one record of evidence: everything that was observed of a program, as plain frozen data.

Watching fills it, rules read nothing else, and it goes through JSON without a loss, so that a
verdict can be reached elsewhere and later. Each field of `Evidence` is a **signal**; a rule names
those that it needs and sees only them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from halfstep.doctor.replayed import (
    Bad,
    BadGradients,
    Birth,
    Precision,
    Replay,
)
from halfstep.doctor.sites import Site  # noqa: TC001  # pydantic reads it at run time

if TYPE_CHECKING:
    from collections.abc import Iterator

Fact = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the program ran.

    Attributes:
        torch: Version of torch.
        devices: Types of device that parameters were on.
        processes: How many train together.
        bf16_is_emulated: Whether the accelerator has no bf16 units.
        tf32: Whether fp32 products may be computed in TF32.
        hold_back: Whether doctor was to hold bad steps back.
    """

    torch: str = ""
    devices: tuple[str, ...] = ()
    processes: int = 1
    bf16_is_emulated: bool = False
    tf32: bool = False
    hold_back: bool = False


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """One module whose kind or format matters: a norm, a loss, a recurrent cell.

    Attributes:
        path: Its name in the model.
        kind: Its class.
        settings: What it was made with ("eps", "momentum", ...), and formats of its tensors.
    """

    path: str
    kind: str
    settings: dict[str, Fact]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model or loss that the loop called, as it stood when watching ended.

    Attributes:
        kind: Its class.
        formats: Number of trainable parameters by format ("fp16", "fp32").
        first_half: Name of the first parameter in fp16 or bf16; None without one.
        modules: Its norms and losses.
        bad_buffers: Names of floating-point buffers that hold inf or NaN.
        bad_parameters: Names of parameters that hold inf or NaN.
        forgotten: Trainable parameters that received gradients and belong to no optimizer.
        never_reached: Trainable parameters of an optimizer that never received a gradient.
        compiled: Whether it runs through torch.compile.
        calls: How often the loop called it.
        training_calls: How often of those gradients were recorded.
        positions: Half buffers that count up, and count some numbers twice.
    """

    kind: str
    formats: dict[str, int] = field(default_factory=dict)
    first_half: str | None = None
    modules: tuple[ModuleFacts, ...] = ()
    bad_buffers: tuple[str, ...] = ()
    bad_parameters: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    never_reached: tuple[str, ...] = ()
    compiled: bool = False
    calls: int = 0
    training_calls: int = 0
    positions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer as it stood when watching ended.

    Attributes:
        kind: Its class.
        formats: Number of its parameters by format.
        settings: Numbers of its first parameter group ("lr", "eps", "weight_decay", "beta2", ...).
        state_formats: Formats of its state tensors, by name of the state.
        shared: How many of its parameters another optimizer, or a second group, has too.
        foreign: How many of its parameters no model that was seen has.
        without_gradient: How many of its parameters have never had a gradient.
        stale: How many of those may have one, and are in no model that was seen.
        skips_itself: Whether it takes found_inf and skips on the device ("fused").
        resumed_at: The step that its state began at; 0 for a new one.
        resumed_in: The iterations that had been made when its state was loaded.
        steps: How often it stepped.
        skipped: How often a scaler kept it from stepping.
    """

    kind: str
    formats: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Fact] = field(default_factory=dict)
    state_formats: dict[str, str] = field(default_factory=dict)
    shared: int = 0
    foreign: int = 0
    without_gradient: int = 0
    stale: int = 0
    skips_itself: bool = False
    resumed_at: int = 0
    resumed_in: int = 0
    steps: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class ScalerFacts:
    """A GradScaler.

    Attributes:
        settings: Its init_scale, growth_factor, backoff_factor, growth_interval.
        scale: The scale that it ended with; None when never used.
        restored: Whether a state was loaded into it.
        created_in: The iteration that it was made in.
        site: Where it was made.
    """

    settings: dict[str, float]
    scale: float | None
    restored: bool
    created_in: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class Static:
    """What is so whatever the numbers are."""

    models: tuple[ModelFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    scalers: tuple[ScalerFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the loop did, in its order.

    Attributes:
        kind: One of `grammar.KINDS`.
        facts: What it was done to, and in which state.
        site: The line that did it.
    """

    kind: str
    facts: dict[str, Fact]
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """An iteration's events; iterations that do the same share one shape.

    Attributes:
        events: In order.
        count: How many iterations had it.
        first: Number of the first that had it.
        last: Number of the last that had it.
        complete: Whether it came to a step; the last one may not have.
    """

    events: tuple[Event, ...]
    count: int
    first: int
    last: int
    complete: bool = True

    def of(self, kind: str) -> list[Event]:
        """Return its events of one kind."""
        return [event for event in self.events if event.kind == kind]


@dataclass(frozen=True, slots=True)
class Loop:
    """The order of what a loop did.

    Attributes:
        iterations: How many there were; one ends with an update of parameters.
        shapes: The different ones, in order of first appearance.
    """

    iterations: int = 0
    shapes: tuple[Shape, ...] = ()

    def of(self, kind: str) -> list[tuple[Shape, Event]]:
        """Return every event of one kind with the shape that it is in."""
        return [(shape, event) for shape in self.shapes for event in shape.of(kind)]

    def count(self, kind: str, **facts: Fact) -> int:
        """Return how often an event of a kind with these facts happened, over all iterations."""
        return sum(
            shape.count
            for shape, event in self.of(kind)
            if all(event.facts.get(name) == value for name, value in facts.items())
        )


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The numbers of one step of one optimizer.

    Attributes:
        iteration: Counted from 0.
        optimizer: Its place in `Static.optimizers`.
        loss: What backward was called on, without its loss scale; None when it was not seen.
        gradient_norm: L2 norm of what the optimizer was given; None when it did not step.
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
    """

    name: str
    formats: tuple[str, ...]
    result: str
    gradients: bool
    autocast: str
    count: int
    site: Site | None


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
    """

    kind: str = ""
    message: str = ""
    site: Site | None = None
    function: str = ""


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
            if birth.culprit or (birth.is_divided and self.precision.disagrees):
                yield birth

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
    return _ADAPTER.validate_json(text)


def as_plain(record: Any) -> Any:
    """Return evidence, or a part of it, as dicts, lists, strings and numbers."""
    return TypeAdapter(type(record)).dump_python(record, mode="json")
