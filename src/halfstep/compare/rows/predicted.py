"""The predicted cost of a comparison's rows on GPUs that this machine lacks.

The caller passes a function that predicts. All output separates predicted from measured figures:
predicted figures have their own names, mark and tables. The only measured figure in these tables is
the accuracy on this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from halfstep.compare.plan.grid import Arm
from halfstep.show import units
from halfstep.show.units import MISSING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.compare.plan.grid import Grid
    from halfstep.compare.rows.rows import Row

MARK = "≈"
"""The mark before each predicted figure."""
BOUND = "predicted|bound by"
"""The header of the only predicted column that contains text."""


class Figure(NamedTuple):
    """A predicted figure with its prediction interval."""

    low: float
    value: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Return it as plain data."""
        return {"low": self.low, "value": self.value, "high": self.high}


@dataclass(frozen=True, slots=True)
class Predicted:
    """The prediction for one row on one GPU.

    Attributes:
        arm: The arm of the row.
        fingerprint: A digest of everything that the prediction depends on.
        seconds: The time of a step in seconds; None if there is no prediction.
        speed_up: The speed relative to a step in fp32, with products in TF32 if the GPU has TF32.
        memory: The memory of the process at the peak of a step, in bytes.
        bound: What takes most of the step's time, such as "host".
        verdict: Why the row is not a gain, in a few words; "" for a gain.
        unknown: Operators whose time is estimated only from their memory traffic, with the number
            of their calls in a step.
        reason: Why there is no prediction; "" if there is one.
    """

    arm: Arm
    fingerprint: str
    seconds: Figure | None = None
    speed_up: Figure | None = None
    memory: int | None = None
    bound: str = ""
    verdict: str = ""
    unknown: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the prediction as plain data; the key of each figure begins with "predicted_"."""
        return {
            "recipe": self.arm.recipe,
            "point": list(self.arm.point),
            "fingerprint": self.fingerprint,
            "predicted_seconds": self.seconds and self.seconds.as_json(),
            "predicted_speed_up": self.speed_up and self.speed_up.as_json(),
            "predicted_memory_bytes": self.memory,
            "predicted_bound": self.bound,
            "verdict": self.verdict,
            "unknown_operators": dict(self.unknown),
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Predicted:
        """Create a prediction from the output of `as_json`.

        Raises:
            KeyError, TypeError: If `given` has another form.
        """
        seconds, speed_up = given["predicted_seconds"], given["predicted_speed_up"]
        return cls(
            Arm(given["recipe"], tuple(given["point"])),
            given["fingerprint"],
            seconds and Figure(**seconds),
            speed_up and Figure(**speed_up),
            given["predicted_memory_bytes"],
            given["predicted_bound"],
            given["verdict"],
            given["unknown_operators"],
            given["reason"],
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predictions for all rows of a comparison on one GPU.

    Attributes:
        key: The name of the GPU on the command line.
        gpu: The full name of the GPU.
        share: The intended coverage of the prediction intervals, in percent.
        over: The recipe that speeds are relative to: tf32, or fp32 if the GPU has no TF32.
        rows: One prediction for each arm of the grid.
        references: One prediction for the recipe `over` at each point of the grid where no arm has
            that recipe.
        caution: What is not known of the architecture of the GPU; "" if it was measured.
    """

    key: str
    gpu: str
    share: int
    over: str
    rows: tuple[Predicted, ...]
    references: tuple[Predicted, ...] = ()
    caution: str = ""

    @property
    def title(self) -> str:
        """The heading of the table."""
        return f"predicted, {self.gpu}"

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "name": self.gpu,
            "measured": False,
            "interval_percent": self.share,
            "speed_up_over": self.over,
            "caution": self.caution,
            "rows": [row.as_json() for row in self.rows],
            "references": [row.as_json() for row in self.references],
        }


Predict = Callable[[], "tuple[Prediction, ...]"]
"""Returns the predictions for a comparison; called after the comparison's directory is locked."""


def nothing() -> tuple[Prediction, ...]:
    """Return no predictions."""
    return ()


def headers(prediction: Prediction, grid: Grid) -> list[str]:
    """Return the headers of a table of predictions; "|" marks a line break in a terminal."""
    return [
        "recipe",
        *grid.axes,
        "best %|measured",
        f"{MARK}|ms/step",
        f"{MARK} speed|x {prediction.over}",
        f"{MARK} MiB",
        BOUND,
    ]


def lines(prediction: Prediction, rows: Sequence[Row]) -> list[list[str]]:
    """Return the lines of a table of predictions, as text.

    First there is a line for each reference, without a measured accuracy. Then there is a line for
    each row of the comparison.
    """
    by_arm = {row.arm: row for row in rows}
    return [
        [
            row.arm.recipe if row.arm in by_arm else f"{row.arm.recipe} (reference)",
            *(override.partition("=")[2] for override in row.arm.point),
            _accuracy(by_arm.get(row.arm)),
            _figure(row.seconds, units.predicted_milliseconds),
            _figure(row.speed_up, units.ratio) if row.arm in by_arm else "1",
            MISSING if row.memory is None else MARK + units.mebibytes(row.memory),
            ", ".join(filter(None, (row.bound, row.verdict))) or MISSING,
        ]
        for row in (*prediction.references, *prediction.rows)
    ]


_BOUND_BY = (
    "bound by: what takes most of the step's time: arithmetic (compute), memory traffic "
    "(bandwidth), the start of kernels on the GPU (launches), or the CPU that launches them (host)"
)
_NO_GAIN = "no gain: less than 1.05 times as fast as {over}"
_TF32 = {"tf32": ", which is fp32 with products in TF32", "fp32": ": the GPU has no TF32"}


def warnings(prediction: Prediction) -> list[str]:
    """Return the notes on what a table of predictions lacks, and why it may be wrong."""
    reasons: dict[str, list[str]] = {}
    for row in prediction.rows:
        if row.reason:
            reasons.setdefault(row.reason, []).append(row.arm.label)
    texts = [
        f"{MARK} no prediction for {', '.join(names)}: {why}" for why, names in reasons.items()
    ]
    unknown = {
        name: operators for row in prediction.rows for name, operators in row.unknown.items()
    }
    texts += [
        f"{MARK} the time of {name} ({count} in a step) is estimated only from its memory traffic"
        for name, count in sorted(unknown.items())
    ]
    return texts + ([f"{MARK} {prediction.caution}"] if prediction.caution else [])


def notes(prediction: Prediction) -> list[str]:
    """Return the notes below a table of predictions: the warnings, then the method."""
    source = "from the operators of one training step and the GPU's datasheet"
    fewer = ", but fewer may on this GPU (see above)" if prediction.caution else ""
    cover = f"{prediction.share} % of the intervals [ ] should contain the true value{fewer}"
    over = f"the recipe {prediction.over}{_TF32[prediction.over]}"
    not_run = ". This recipe was not trained here" if prediction.references else ""
    return [
        *warnings(prediction),
        f"{MARK} predicted, {source}: nothing ran on {prediction.gpu}.",
        f"{MARK} {cover}; memory has no interval.",
        f"{MARK} {_BOUND_BY}; {_NO_GAIN.format(over=prediction.over)}.",
        f"{MARK} memory includes 1 GiB that PyTorch takes on any GPU.",
        f"{MARK} speed is relative to {over}{not_run}.",
    ]


def _accuracy(row: Row | None) -> str:
    spread = None if row is None else row.measures["best_accuracy"]
    return MISSING if spread is None else units.percent(spread.mean)


def _figure(given: Figure | None, write: Callable[[float], str]) -> str:
    if given is None:
        return MISSING
    return f"{MARK}{write(given.value)} [{write(given.low)}, {write(given.high)}]"
