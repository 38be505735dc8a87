"""PNG plots of a comparison for slides and papers: curves, and the score over training time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from halfstep.compare.output.columns import title
from halfstep.compare.output.report.curves import read_curves
from halfstep.compare.rows.rows import rows_by_arm
from halfstep.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from halfstep.compare.cells.results import Result
    from halfstep.compare.plan.grid import Grid
    from halfstep.compare.rows.rows import Row

_CURVES = {
    "train_loss": "training loss",
    "val_score": "validation {}",
    "loss_scale": "loss scale",
}
_DASHES = ("solid", (0, (4, 2)), (0, (1, 2)), (0, (4, 2, 1, 2)))
"""The dashes of the arms, in turn: a line shows through the gaps of those that cover it."""


def write_plots(directory: Path, grid: Grid, results: Sequence[Result]) -> list[str]:
    """Write `curves.png` and `tradeoff.png` and return their names."""
    # pyplot is not used, because it has global state and may need a display.
    from matplotlib.figure import Figure

    curves = Figure(figsize=(4.2 * len(_CURVES), 3.6), layout="constrained")
    axes = curves.subplots(1, len(_CURVES), squeeze=False)[0]
    for axis, (name, header) in zip(axes, _CURVES.items(), strict=True):
        _draw_curves(axis, grid, results, name)
        axis.set_title(header.format(grid.score.name))
        axis.set_xlabel("optimizer step")
    curves.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    curves.suptitle(title(grid))
    tradeoff = Figure(figsize=(5.2, 4.0), layout="constrained")
    _draw_tradeoff(tradeoff.subplots(), grid, rows_by_arm(grid, results))
    figures = {"curves.png": curves, "tradeoff.png": tradeoff}
    for name, figure in figures.items():
        write_atomically(directory / name, partial(figure.savefig, format="png", dpi=150))
    return list(figures)


def _draw_curves(axis: Axes, grid: Grid, results: Sequence[Result], name: str) -> None:
    labelled = set()
    for result in results:
        curve = read_curves(result.cell.run_directory, grid.score).get(name)
        if curve is None:
            continue
        arm = result.cell.arm
        number = grid.arms.index(arm)
        colour, dashes = f"C{number % 10}", _DASHES[number % len(_DASHES)]
        values = [float("nan") if value is None else value for value in curve["y"]]
        label = None if arm in labelled else arm.label
        labelled.add(arm)
        axis.plot(curve["x"], values, color=colour, linestyle=dashes, label=label, linewidth=1.2)
        for step in curve["nonfinite"][:1]:
            axis.axvline(step, color=colour, linestyle=":", linewidth=1)
    if name == "loss_scale":
        axis.set_yscale("log", base=2)


def _draw_tradeoff(axis: Axes, grid: Grid, rows: Sequence[Row]) -> None:
    scale = grid.score.scale
    for number, row in enumerate(rows):
        seconds, best = row.measures["train_seconds"], row.measures[grid.score.best]
        if seconds is None or best is None:
            continue
        axis.errorbar(
            seconds.mean,
            scale * best.mean,
            xerr=seconds.sd,
            yerr=None if best.sd is None else scale * best.sd,
            color=f"C{number % 10}",
            marker="D" if row.on_front else "o",
            mfc="none" if row.rehearsed else None,
            label=row.arm.label + (" (rehearsed)" if row.rehearsed else ""),
        )
    axis.set_xlabel("training time, s")
    axis.set_ylabel(f"best validation {grid.score.title}")
    axis.legend(fontsize="small")
