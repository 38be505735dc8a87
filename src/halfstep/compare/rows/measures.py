"""The measured figures of a run, with their headers and their format for readers.

All kinds of output use this list. A measure that no run of a comparison has is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from halfstep.show import units
from halfstep.show.table import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.compare.plan.score import Score

Better = Literal["more", "less"]


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a run's summary.

    Attributes:
        name: The key in `summary.json`, with dots for nested keys.
        header: The header of its column; "|" marks a line break in a terminal.
        write: Returns the value as text for readers.
        better: Whether more or less is better; None if neither is.
        main: Whether it is in the table on a terminal, which has space for only a few columns.
    """

    name: str
    header: str
    write: Callable[[float], str]
    better: Better | None = None
    main: bool = False

    @property
    def title(self) -> str:
        """The header in one line."""
        return one_line(self.header)


MEASURES = (
    Measure("best_accuracy", "best|%", units.percent, "more", main=True),
    Measure("final_accuracy", "final|%", units.percent, "more", main=True),
    Measure("best_accuracy_top5", "best|top-5 %", units.percent, "more"),
    Measure("final_accuracy_top5", "final|top-5 %", units.percent, "more"),
    Measure("train_seconds", "train|time", units.duration, "less", main=True),
    Measure("wall_seconds", "wall|time", units.duration, "less", main=True),
    Measure("images_per_second", "images|/s", units.rate, "more", main=True),
    Measure("step_seconds_median", "step ms|median", units.milliseconds, "less"),
    Measure("step_seconds_p95", "step ms|p95", units.milliseconds, "less"),
    Measure("core_wait_share", "waited for|a core %", units.percent, "less"),
    Measure("peak_memory_bytes", "memory|MiB", units.mebibytes, "less", main=True),
    Measure("peak_memory_reserved_bytes", "reserved|MiB", units.mebibytes, "less"),
    Measure("energy_joules", "energy|J", units.plain, "less"),
    Measure("checkpoint_bytes", "checkpoint|MiB", units.mebibytes, "less"),
    Measure("skipped_steps", "skipped|steps", units.count, "less", main=True),
    Measure("unchanged_share", "unchanged|weights %", units.percent, "less"),
    Measure("newest.gradient_cosine", "gradient|cosine", units.cosine, "more"),
    Measure("newest.gradient_error", "gradient|error", units.two_digits, "less"),
)


def measures_of(score: Score) -> tuple[Measure, ...]:
    """Return the measures of runs that are judged by a score, which comes first."""
    if score.is_accuracy:
        return MEASURES
    better: Better = "less" if score.less_is_better else "more"
    own = (
        Measure(score.best, f"best|{score.name}", score.value, better, main=True),
        Measure(score.final, f"final|{score.name}", score.value, better, main=True),
    )
    return own + tuple(measure for measure in MEASURES if "accuracy" not in measure.name)


MEMORY_PARTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "compressed": "compressed activations",
}
"""The keys of `held_bytes` in a summary (memory in use after a step, by kind), and their labels."""
