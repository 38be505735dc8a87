"""What the rows of a comparison would cost on GPUs that are not here: predicted, never measured.

Who can predict hands it in; a comparison keeps it apart from what was measured, under names, marks
and headings of its own, and shows beside it only the accuracy that the rows reached here.
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
"""Stands before every predicted figure, in every output."""
BOUND = "predicted|bound, remark"
"""The one header of a predicted figure that is text."""


class Figure(NamedTuple):
    """A predicted figure, and between what it is likely to lie."""

    low: float
    value: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Return it as plain data."""
        return {"low": self.low, "value": self.value, "high": self.high}


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted of one row on one GPU.

    Attributes:
        arm: The row.
        fingerprint: Of all that the prediction depends on: equal for equal predictions.
        seconds: Of a step; None where nothing is predicted.
        speed_up: Over the step in fp32, with products in TF32 where the GPU has that.
        memory: Bytes of the process at the step's peak.
        bound: What most of the step is spent on.
        verdict: What of it decides, in a few words; "" for a gain.
        unknown: Operators whose cost is a guess from their bytes, and how many of each.
        reason: Why nothing is predicted; "" where something is.
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
        """Return it as plain data; the name of every figure says that it is predicted."""
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
        """Read what `as_json` wrote.

        Raises:
            KeyError, TypeError: If it was written by something else.
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
    """What is predicted of a comparison's rows on one GPU.

    Attributes:
        key: What the command line calls the GPU.
        gpu: What its maker calls it.
        share: Percent of outcomes that intervals are to cover.
        over: The recipe that speeds are relative to: tf32, or fp32 where the GPU has no TF32.
        rows: One for each arm of the grid.
        references: The recipe that speeds are relative to at each point of the grid, where no arm
            has it.
    """

    key: str
    gpu: str
    share: int
    over: str
    rows: tuple[Predicted, ...]
    references: tuple[Predicted, ...] = ()

    @property
    def title(self) -> str:
        """The heading of its table."""
        return f"predicted, {self.gpu}"

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "name": self.gpu,
            "measured": False,
            "interval_percent": self.share,
            "speed_up_over": self.over,
            "rows": [row.as_json() for row in self.rows],
            "references": [row.as_json() for row in self.references],
        }


Predict = Callable[[], "tuple[Prediction, ...]"]
"""Gives the predictions for a comparison; asked for once its directory is claimed."""


def nothing() -> tuple[Prediction, ...]:
    """Predict for no GPU."""
    return ()


def headers(prediction: Prediction, grid: Grid) -> list[str]:
    """Return the headers of a table of predictions; a terminal breaks them at the bars."""
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
    """Return the cells of a table of predictions.

    There is a line for each reference, without a measured accuracy, and then for each row of the
    comparison.
    """
    by_arm = {row.arm: row for row in rows}
    return [
        [
            each.arm.recipe if each.arm in by_arm else f"{each.arm.recipe} (reference)",
            *(override.partition("=")[2] for override in each.arm.point),
            _accuracy(by_arm.get(each.arm)),
            _figure(each.seconds, units.predicted_milliseconds),
            _figure(each.speed_up, units.ratio) if each.arm in by_arm else "1",
            MISSING if each.memory is None else MARK + units.mebibytes(each.memory),
            ", ".join(filter(None, (each.bound, each.verdict))) or MISSING,
        ]
        for each in (*prediction.references, *prediction.rows)
    ]


_TF32 = {"tf32": ", which is fp32 with products in TF32", "fp32": ": the GPU has no TF32"}


def notes(prediction: Prediction) -> list[str]:
    """Say what predicted figures are, how far to trust them, and what is not among them."""
    source = "from the operators of one training step and the GPU's datasheet"
    cover = f"{prediction.share} % of the intervals [ ] should contain the true value"
    over = f"the recipe {prediction.over}{_TF32[prediction.over]}"
    not_run = ". This recipe was not trained here" if prediction.references else ""
    said = [
        f"{MARK} predicted, {source}: nothing ran on {prediction.gpu}.",
        f"{MARK} {cover}; memory has no interval.",
        f"{MARK} memory includes 1 GiB that PyTorch takes on any GPU.",
        f"{MARK} speed is relative to {over}{not_run}.",
    ]
    unknown = {name: each for row in prediction.rows for name, each in row.unknown.items()}
    said += [
        f"{MARK} the time of {name} ({count} in a step) is estimated only from its memory traffic"
        for name, count in sorted(unknown.items())
    ]
    reasons: dict[str, list[str]] = {}
    for row in prediction.rows:
        if row.reason:
            reasons.setdefault(row.reason, []).append(row.arm.label)
    return said + [
        f"{MARK} no prediction for {', '.join(names)}: {why}" for why, names in reasons.items()
    ]


def _accuracy(row: Row | None) -> str:
    spread = None if row is None else row.measures["best_accuracy"]
    return MISSING if spread is None else units.percent(spread.mean)


def _figure(given: Figure | None, write: Callable[[float], str]) -> str:
    if given is None:
        return MISSING
    return f"{MARK}{write(given.value)} [{write(given.low)}, {write(given.high)}]"
