"""The record of evidence: all observations of a program, as plain frozen data.

Watching fills the record, and rules read nothing else. The record can be written to JSON and read
back unchanged, so rules can also run later or on another machine. Each field of `Evidence` is
a **signal**. A rule names the signals that it needs, and receives only these.
"""

from __future__ import annotations

import json
from dataclasses import asdict, field, fields, is_dataclass, replace
from functools import cache
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from halfstep.doctor.record.called import (
    Call,
    ElsewhereCall,
    Ending,
    Evaluation,
    HalfOverflow,
    Saved,
)
from halfstep.doctor.record.loop import Loop
from halfstep.doctor.record.measured import (
    Average,
    BadGradients,
    Growth,
    HalfCast,
    Numbers,
    OwnScale,
    RoundedCount,
    RoundTrip,
    Sample,
)
from halfstep.doctor.record.replayed import (
    APART,
    Bad,
    Birth,
    Precision,
    Replay,
    TargetRange,
)
from halfstep.doctor.record.static import Environment, Static
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import ConfigDict, TypeAdapter


def _as_json(value: Any) -> Any:
    """Return records as JSON holds them; the type `Any` would turn inf and NaN into null."""
    if isinstance(value, dict):
        return {str(key): _as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, float) and not isfinite(value):
        return {inf: "Infinity", -inf: "-Infinity"}.get(value, "NaN")
    return _as_json(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else value


class Record(Protocol):
    """What a signal without a field of its own has observed: frozen data, empty by default."""

    signal: ClassVar[str]


Kind = TypeVar("Kind", bound=Record)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All observations of a program; each field is a signal.

    Attributes:
        signals: Names of the signals that were observed; the other fields are empty.
        children: The records of processes that the program has started, as JSON.
        others: The records of signals that have no field of their own, by name; see `of`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"ser_json_inf_nan": "strings"}

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
    targets: tuple[TargetRange, ...] = ()
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
    own_scales: tuple[OwnScale, ...] = ()
    trips: tuple[RoundTrip, ...] = ()
    casts: tuple[HalfCast, ...] = ()
    children: tuple[str, ...] = ()
    others: dict[str, Any] = field(default_factory=dict)

    def of(self, kind: type[Kind]) -> Kind:
        """Return the record of a signal that has no field of its own.

        Args:
            kind: The class of the record, whose attribute `signal` is the signal's name.

        Returns:
            The record; an empty one if the signal was not observed.
        """
        value = self.others.get(kind.signal)
        if value is None:
            return kind()
        found: Kind = value if isinstance(value, kind) else _adapter(kind).validate_python(value)
        return found

    def only(self, names: frozenset[str]) -> Evidence:
        """Return a record with only these signals."""
        empty = {
            each.name: getattr(_NOTHING, each.name)
            for each in fields(self)
            if each.name not in names | {"signals", "others"}
        }
        others = {name: each for name, each in self.others.items() if name in names}
        return replace(self, signals=self.signals & names, others=others, **empty)

    def without(self, name: str) -> Evidence:
        """Return the record without one signal."""
        return self.only(self.signals - {name})

    @property
    def stays_finite(self) -> bool:
        """Whether there are weights, and none was found to contain inf or NaN.

        The parameters are checked after each bad step and at the end.
        """
        at_the_end = any(each.bad_parameters for each in self.static.models)
        known = bool(self.static.models) or self.numbers.are_own
        return known and not self.numbers.spoiled and not at_the_end

    def lost(self, apart: float = APART) -> Iterator[Birth]:
        """Yield the births in the forward pass that change the result of a step.

        There are two kinds: a birth that makes the loss or a gradient non-finite; and an overflow
        that a division turns into 0, if the step is finite but differs from the step in fp32.

        Args:
            apart: The relative difference between the step's loss and its loss in fp32 above which
                they differ.
        """
        for birth in self.births:
            if birth.phase != "forward":
                continue
            if birth.culprit or (birth.is_divided and self._disagrees(apart)):
                yield birth

    def _disagrees(self, apart: float) -> bool:
        """Return whether the last step, or a replayed step, differs from the same step in fp32."""
        if self.precision.disagrees or self.precision.is_apart(apart):
            return True
        halves = {
            each.iteration: each.loss
            for each in self.replays
            if each.name == "plain" and each.loss is not None and isfinite(each.loss)
        }
        return any(
            Precision(loss=halves.get(each.iteration), exact_loss=each.loss).is_apart(apart)
            for each in self.replays
            if each.name == "fp32" and each.finite
        )

    def exact_is_finite(self, iteration: int | None = None) -> bool | None:
        """Return whether a step is finite in fp32; None if it was not replayed in fp32.

        Args:
            iteration: Number of the step; None for the first step that was replayed in fp32.
        """
        for each in self.replays:
            if each.name == "fp32" and not each.note and iteration in (None, each.iteration):
                return each.finite
        return None

    def fp32_facts(self, iteration: int, conclusion: str = "") -> tuple[str, ...]:
        """Return a text that says whether a bad step is finite in fp32; empty if unknown.

        Args:
            iteration: Number of the step.
            conclusion: A conclusion to append if the step is finite in fp32; "" for none.
        """
        is_finite = self.exact_is_finite(iteration)
        if is_finite is None:
            return ()
        if not is_finite:
            return ("the same step in fp32 is not finite either",)
        return ("the same step in fp32 is finite" + f": {conclusion}" * bool(conclusion),)

    def to_json(self) -> str:
        """Return the record as JSON, with inf and NaN as strings."""
        plain = replace(self, others=_as_json(self.others))
        record = _adapter(Evidence).dump_python(plain, mode="json")
        return json.dumps(record | {"signals": sorted(self.signals)}, indent=1)


_NOTHING = Evidence()
SIGNALS = frozenset(each.name for each in fields(Evidence)) - {"signals", "others"}


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Return what reads and writes a kind of record as JSON."""
    from pydantic import TypeAdapter  # its import and the schema take 0.1 s

    return TypeAdapter(kind)


def recorded(**observed: Any) -> Evidence:
    """Return a record of what the signals have observed, by their names."""
    others = {name: each for name, each in observed.items() if name not in SIGNALS}
    own = {name: each for name, each in observed.items() if name in SIGNALS}
    return Evidence(signals=frozenset(observed), others=others, **own)


def from_json(text: str | bytes) -> Evidence:
    """Return the record that `Evidence.to_json` wrote.

    Raises:
        ValueError: If it is not such a record.
    """
    found: Evidence = _adapter(Evidence).validate_json(text)
    if not found.signals:
        raise ValueError("no signals: nothing was observed")
    return found


def as_plain(record: Any) -> Any:
    """Return evidence, or a part of it, as dicts, lists, strings and numbers."""
    return _adapter(record.__class__).dump_python(record, mode="json")
