"""The table of `halfstep bench recipes`: a row for each recipe, and why a row is slow."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from torch.nn.modules.batchnorm import _BatchNorm

from halfstep.bench.outcome import RESULTS, Outcome
from halfstep.recipe import recipe as find_recipe
from halfstep.show.document import TableCell
from halfstep.show.units import MISSING, milliseconds, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from halfstep.bench.outcome import Subject

HALVES = ("fp16", "bf16")

SLOWER = 1.05
"""From this factor over a comparable recipe on, a row says why it is slow."""

NOT_CUDNN = (
    "batch norm in bf16, or with half weights, has no cuDNN kernel in eager mode: compile the "
    "model, or use fp16 or half-bn32"
)
PACKING = "packing activations costs time and buys memory: a larger batch"
ROUNDING = "the weights are rounded stochastically or with a compensation after each step"


@dataclass(frozen=True, slots=True)
class Row:
    """A step under a recipe.

    Attributes:
        recipe: The name of the recipe.
        batch: Images of the step.
        seconds: Time of the step; None if it does not fit.
        memory: Bytes at the peak of the step; None if it does not fit.
        largest: The largest batch that fits, estimated; None if unknown.
        speed_up: Speed-up over the first row; None for that row.
        fits: Whether the step fits into the memory of the GPU.
        why: Why the step is slow; "" if it is not.
    """

    recipe: str
    batch: int
    seconds: float | None
    memory: int | None
    largest: int | None
    speed_up: float | None
    fits: bool = True
    why: str = ""

    @property
    def rate(self) -> float | None:
        """Images per second."""
        return None if self.seconds is None else self.batch / self.seconds

    def because(self, why: str) -> Row:
        """Return the row with a reason."""
        return replace(self, why=why)


def why_slow(row: Row, rows: Sequence[Row], model: nn.Module, *, measured: bool) -> str:
    """Return why a step is slower than the fastest one in a half format; "" if it is not.

    Args:
        row: The step.
        rows: All steps.
        model: The model.
        measured: Whether steps are measured; predictions do not know which kernels cuDNN lacks.
    """
    if not row.fits:
        return "does not fit"
    half = [rival.seconds for rival in rows if rival.seconds and _is_half(rival.recipe)]
    if row.seconds is None or not _is_half(row.recipe) or row.seconds < SLOWER * min(half):
        return ""
    chosen = find_recipe(row.recipe)
    params, autocast = chosen.get("params"), chosen.get("autocast")
    norms = any(isinstance(module, _BatchNorm) for module in model.modules())
    half_norms = params in HALVES and chosen.get("norms") != "fp32"
    reasons = {
        PACKING: chosen.get("activations") or chosen.get("activation_budget"),
        NOT_CUDNN: measured and norms and (half_norms or autocast == "bf16"),
        ROUNDING: chosen.get("update"),
    }
    return "; ".join(text for text, holds in reasons.items() if holds)


def outcome(subject: Subject, rows: Sequence[Row], notes: Sequence[str]) -> Outcome:
    """Return the table, the bars, and which recipe is the fastest that fits."""
    headers = ("recipe", "step|ms", "images/s", "peak|GiB", "speed|x", "largest|batch", "why slow")
    timed = [row for row in rows if row.seconds is not None]
    most = max((row.seconds or 0.0 for row in timed), default=1.0)
    return Outcome(
        subject=subject,
        headers=headers,
        texts=1,
        rows=[_cells(row) for row in rows],
        recommendation=_recommendation(rows),
        notes=tuple(notes),
        figures={
            "predicted": subject.device == "cpu",
            "rows": {row.recipe: {**asdict(row), "images_per_second": row.rate} for row in rows},
        },
        bars=[
            {
                "label": row.recipe,
                "text": f"{milliseconds(row.seconds or 0.0)} ms a step",
                "share": (row.seconds or 0.0) / most,
                "parts": [],
                "source": f"{RESULTS}#rows.{row.recipe}.seconds",
            }
            for row in timed
        ],
    )


def _is_half(name: str) -> bool:
    chosen = find_recipe(name)
    return bool({chosen.get("params"), chosen.get("autocast")} & set(HALVES))


def _cells(row: Row) -> tuple[TableCell, ...]:
    def cell(key: str, number: float | None, text: str) -> TableCell:
        if number is None:
            return TableCell(MISSING)
        return TableCell(text, value=number, source=f"{RESULTS}#rows.{row.recipe}.{key}")

    return (
        TableCell(row.recipe, value=row.recipe),
        cell("seconds", row.seconds, milliseconds(row.seconds or 0.0)),
        cell("images_per_second", row.rate, f"{row.rate or 0:.0f}"),
        cell("memory", row.memory, f"{(row.memory or 0) / 2**30:.1f}"),
        cell("speed_up", row.speed_up, ratio(row.speed_up or 0.0)),
        cell("largest", row.largest, f"{row.largest:,}" if row.largest is not None else ""),
        TableCell(row.why, value=row.why),
    )


def _recommendation(rows: Sequence[Row]) -> str:
    fitting = [row for row in rows if row.fits and row.seconds is not None]
    if not fitting:
        return "no recipe fits: a smaller --batch does"
    fastest = min(fitting, key=lambda row: row.seconds or 0.0)
    text = f"{fastest.recipe} is the fastest: {fastest.rate:.0f} images/s"
    roomy = max(fitting, key=lambda row: row.largest or 0)
    if roomy.largest and roomy.largest > (fastest.largest or 0):
        text += f"; {roomy.recipe} holds the largest batch, about {roomy.largest:,} images"
    return text
