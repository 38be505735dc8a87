"""Where a row gains speed or memory: as measured on this machine, and as predicted for GPUs.

`verdict` and `one_seed` both use these functions, so a page has one advice: no row is recommended
for a GPU on which the table of predictions shows no gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.compare.rows.rows import on_device
from halfstep.show.units import ratio, ratio_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.compare.plan.grid import Arm
    from halfstep.compare.rows.predicted import Prediction
    from halfstep.compare.rows.rows import Row
    from halfstep.statistics import Ratio

GAIN = 1.05
"""The ratio to the baseline above which a speed-up, or a saving of memory, is worth a change.

A row has a gain if the whole confidence interval of the ratio is above this value. It has no gain
if the whole interval is below. Otherwise more seeds are needed.
"""
NO_GAIN = "no gain"
"""The remark on a prediction that is not `GAIN` times as fast."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The predictions for a row, compared with those for its baseline.

    Attributes:
        gains: The GPUs on which the row is predicted to be a gain.
        remarks: The other GPUs with a prediction, by the reason why the row is no gain there.
    """

    gains: tuple[str, ...]
    remarks: Mapping[str, Sequence[str]]

    def __str__(self) -> str:
        return "; ".join(
            f"{remark} on {' and '.join(names)} (predicted)"
            for remark, names in self.remarks.items()
        )


def measured(row: Row, base: Row) -> dict[str, Ratio]:
    """Return the ratios by which a row is "faster" and "smaller", if they are valid for advice.

    Rehearsed and disturbed speeds are not valid, and neither is the memory of a process.
    """
    if row.rehearsed or base.rehearsed:
        return {}
    ratios = {
        "faster": None if is_disturbed(row, base) else row.speed,
        "smaller": row.memory.inverse() if row.memory and on_device(row) else None,
    }
    return {name: gain for name, gain in ratios.items() if gain is not None}


def is_disturbed(row: Row, base: Row) -> bool:
    """Tell whether the ratio of the speeds of two rows is not reliable."""
    return row.disturbed or base.disturbed


def in_words(row: Row, base: Row, baseline: str) -> str:
    """Describe the measured speed and memory of a row, compared with its baseline."""
    if row.rehearsed or base.rehearsed:
        whose = "" if row.rehearsed else f" of {baseline}"
        return f"the speed{whose} here is that of a rehearsal and does not count"
    texts = []
    if row.speed is not None:
        texts.append(_times(row.speed, "speed") + _disturbed(row, base, baseline))
    if row.memory is not None:
        texts.append(_times(row.memory, "memory"))
    return ", ".join(texts)


def _disturbed(row: Row, base: Row, baseline: str) -> str:
    """Return a remark that names the rows whose times were disturbed; "" if there are none."""
    own = row.recipe if row.recipe != base.recipe else row.arm.label
    names = [name for figure, name in ((base, baseline), (row, own)) if figure.disturbed]
    return f" (times of {' and '.join(names)} were disturbed)" if names else ""


def _times(gain: Ratio, of_what: str) -> str:
    ends = ratio_interval(gain.low, gain.high)
    return f"{ratio(gain.mean)}x the {of_what}{' ' if ends else ''}{ends}"


def elsewhere(arm: Arm, base: Arm, predicted: Sequence[Prediction]) -> Elsewhere:
    """Return where an arm is predicted to be a gain compared with its baseline."""
    gains: list[str] = []
    remarks: dict[str, list[str]] = {}
    for prediction in predicted:
        remark = predicted_remark(arm, base, prediction)
        if remark:
            remarks.setdefault(remark, []).append(prediction.gpu)
        elif remark is not None:
            gains.append(prediction.gpu)
    return Elsewhere(tuple(gains), remarks)


def predicted_remark(arm: Arm, base: Arm, prediction: Prediction) -> str | None:
    """Return why an arm is no gain on a GPU compared with its baseline.

    Returns:
        The reasons in a few words; "" for a gain, and None if there is no prediction.
    """
    by_arm = {row.arm: row for row in prediction.rows}
    mine, theirs = by_arm.get(arm), by_arm.get(base)
    if mine is None or mine.speed_up is None:
        return None
    remarks = mine.verdict.split(", ") if mine.verdict else []
    if arm.recipe == prediction.over:
        # The table compares this row with itself.
        remarks = [remark for remark in remarks if remark != NO_GAIN]
    speed = theirs.speed_up.value if theirs and theirs.speed_up else 0.0
    if mine.speed_up.value < GAIN * speed and NO_GAIN not in remarks:
        remarks.append(NO_GAIN)
    return ", ".join(remarks)
