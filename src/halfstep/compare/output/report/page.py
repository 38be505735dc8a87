"""Fills the report's template: rows and verdicts become HTML, curves and settings become data.

Each number on the page names its source: a file in the comparison's directory.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.compare.cells.directory import COMPARISON
from halfstep.compare.output.columns import (
    DISTURBED,
    ON_FRONT,
    columns,
    title,
)
from halfstep.compare.output.notes import disturbed_note, front_note, notes
from halfstep.compare.output.report import facts
from halfstep.compare.output.report.curves import read_curves
from halfstep.compare.plan.grid import flat
from halfstep.compare.rows import predicted as of_gpus
from halfstep.compare.rows.one_seed import conclusions
from halfstep.compare.rows.rows import rows_by_arm, rows_by_seed
from halfstep.compare.rows.verdict import verdicts
from halfstep.show.document import CHART, TableCell, document
from halfstep.show.table import REHEARSED, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.compare.cells.results import Result
    from halfstep.compare.output.columns import Column
    from halfstep.compare.plan.grid import Arm, Grid
    from halfstep.compare.rows.predicted import Prediction
    from halfstep.compare.rows.rows import Row
    from halfstep.compare.rows.verdict import Verdict

_HERE = Path(__file__).parent
_TEMPLATE = _HERE / "page.html"
_SCRIPTS = (
    "state.js",
    "tables.js",
    *CHART,
    _HERE / "charts.js",
    "legend.js",
    _HERE / "diff.js",
)
_OF_TWO = {
    "speed": "images_per_second",
    "memory": "peak_memory_bytes",
}


def page(grid: Grid, results: Sequence[Result], predicted: Sequence[Prediction] = ()) -> str:
    """Return the report as one HTML document."""
    rows = rows_by_arm(grid, results)
    shown = columns(grid, results, everything=True)
    first = {column.title for column in columns(grid, results, everything=False)}
    concluded = conclusions(grid, rows, predicted)
    shown_verdicts = verdicts(grid, rows, predicted) if concluded is None else concluded.verdicts
    return document(
        _TEMPLATE,
        scripts=_SCRIPTS,
        data=_data(grid, results, rows),
        title=title(grid),
        grid=grid,
        done=sum(result.status != "pending" for result in results),
        total=len(results),
        conclusions=concluded,
        verdicts=_verdicts(rows, shown_verdicts),
        differences=_differences(grid, rows),
        span=max(_span(grid, rows), grid.margin),
        margin=grid.score.margin(grid.margin),
        score=grid.score,
        text_headers=["recipe", *grid.axes, "seed", "status"],
        headers=["recipe", *grid.axes, "status", *(column.title for column in shown)],
        more=[column.title for column in shown if column.title not in first],
        rows=[_table_row(row, grid, shown, results) for row in rows],
        run_headers=["recipe", *grid.axes, "seed", "status", *(c.title for c in shown)],
        runs=[_table_row(row, grid, shown, results) for row in rows_by_seed(grid, results)],
        predicted=[_predicted(prediction, grid, rows) for prediction in predicted],
        memory=facts.memory(rows),
        memory_note=facts.memory_note(results),
        formats=facts.formats(rows),
        environment=facts.environment(results),
        notes=notes(grid, results),
        front=ON_FRONT,
        front_note=front_note(results),
        rehearsed=REHEARSED,
        disturbed=DISTURBED,
        disturbed_note=disturbed_note(),
    )


def _data(grid: Grid, results: Sequence[Result], rows: Sequence[Row]) -> dict[str, Any]:
    arms, several = list(grid.arms), len(grid.seeds) > 1
    return {
        "front": front_note(results),
        "score": {
            "name": grid.score.name,
            "title": grid.score.title,
            "scale": grid.score.scale,
        },
        "arms": [
            {
                "label": _short(arm),
                "rehearsed": bool(row.rehearsed),
                "front": bool(row.on_front),
                "score": _mean(row, grid.score.best),
                "seconds": _mean(row, "train_seconds"),
                "source": row.sources,
            }
            for arm, row in zip(arms, rows, strict=True)
        ],
        "cells": [
            {
                "label": _short(result.cell.arm) + several * f" seed {result.cell.seed}",
                "arm": arms.index(result.cell.arm),
                "seed": result.cell.seed,
                "status": result.status,
                "source": f"{result.cell.directory.name}/run/metrics.jsonl",
                "curves": read_curves(result.cell.run_directory, grid.score),
                "settings": dict(flat(result.cell.settings)),
            }
            for result in results
        ],
    }


def _short(arm: Arm) -> str:
    """Return a short label of an arm, with the keys of the config without their sections."""
    overrides = (override.partition("=") for override in arm.point)
    return " ".join((arm.recipe, *(f"{key.split('.')[-1]}={value}" for key, _, value in overrides)))


def _mean(row: Row, name: str) -> float | None:
    spread = row.measures[name]
    return None if spread is None else spread.mean


def _table_row(
    row: Row, grid: Grid, shown: Sequence[Column], results: Sequence[Result]
) -> dict[str, Any]:
    overrides = [override.partition("=")[2] for override in row.arm.point]
    what = dict(zip(grid.axes, overrides, strict=True))
    if row.seed is not None:
        what["seed"] = str(row.seed)
    cells = []
    for column in shown:
        written = column.cell(row)
        value = column.value(row)
        cells.append(
            TableCell(
                text=written[0],
                spread=" ".join(written[1:]),
                value=value,
                label=column.title,
                source="" if value is None else _source(row, column, grid, results),
                link=_explanation(row, column),
            )
        )
    return {
        "arm": grid.arms.index(row.arm),
        "recipe": row.recipe,
        "rehearsed": row.rehearsed,
        "disturbed": row.disturbed,
        "front": row.on_front,
        "baseline": row.is_baseline,
        "status": row.status,
        "kind": "finished" if row.status == "finished" else row.status.split()[-1],
        "reason": "; ".join(
            f"seed {result.cell.seed}: {result.failure}" if row.seed is None else result.failure
            for result in row.results
            if result.failure
        ),
        "seed": row.seed,
        "overrides": [TableCell(text, value=text, label=key) for key, text in what.items()],
        "sources": row.sources,
        "cells": cells,
    }


def _predicted(prediction: Prediction, grid: Grid, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the table of predictions for a GPU; only the accuracies in it were measured."""
    headers = list(map(one_line, of_gpus.headers(prediction, grid)))
    by_arm = {row.arm: row for row in rows}
    lines = of_gpus.lines(prediction, rows)
    first = 1 + len(grid.axes)
    cells = []
    places = [f"references.{at}." for at in range(len(prediction.references))]
    places += [f"rows.{at}." for at in range(len(prediction.rows))]
    predictions = (*prediction.references, *prediction.rows)
    for predicted, line, place in zip(predictions, lines, places, strict=True):
        row, here = by_arm.get(predicted.arm), f"{COMPARISON}#predicted.{prediction.key}.{place}"
        figures = (
            (predicted.seconds and predicted.seconds.value, "predicted_seconds.value"),
            (predicted.speed_up and predicted.speed_up.value, "predicted_speed_up.value"),
            (predicted.memory, "predicted_memory_bytes"),
            (line[-1], "predicted_bound"),
        )
        cells.append(
            {
                "arm": grid.arms.index(predicted.arm) if row else None,
                "recipe": line[0],
                "overrides": [
                    TableCell(text, value=text, label=label)
                    for label, text in zip(grid.axes, line[1:first], strict=True)
                ],
                "accuracy": TableCell(
                    line[first],
                    value=None if row is None else _mean(row, "best_accuracy"),
                    label=headers[first],
                    source=" ".join(
                        result.source("best_accuracy") for result in (row.measured if row else ())
                    ),
                ),
                "cells": [
                    TableCell(
                        text,
                        value=1.0 if value is None and row is None else value,
                        label=label,
                        source="" if predicted.reason or value is None else here + key,
                    )
                    for label, text, (value, key) in zip(
                        headers[first + 1 :], line[first + 1 :], figures, strict=True
                    )
                ],
            }
        )
    return {
        "id": f"predicted-{prediction.key}",
        "title": prediction.title,
        "headers": headers,
        "rows": cells,
        "notes": of_gpus.notes(prediction),
    }


def _explanation(row: Row, column: Column) -> str:
    """Return the path of doctor's explanation of a non-finite loss; "" for other columns."""
    if column.key != "first_nonfinite_step":
        return ""
    return next((result.explanation for result in row.results if result.cause), "")


def _source(row: Row, column: Column, grid: Grid, results: Sequence[Result]) -> str:
    pairs = {"difference": grid.score.best, **_OF_TWO}
    key = pairs.get(column.key, column.key)
    own = [result.source(key) for result in row.measured]
    if column.key not in pairs:
        return " ".join(own)
    seeds = {result.cell.seed for result in row.measured}
    base = [
        result.source(key)
        for result in results
        if result.cell.arm == grid.baseline(row.arm) and result.cell.seed in seeds
    ]
    return " ".join(dict.fromkeys([*own, *base]))


def _verdicts(rows: Sequence[Row], given: Sequence[Verdict]) -> list[dict[str, Any]]:
    by_label = {row.arm.label: row for row in rows}
    return [
        asdict(verdict)
        | {
            "kind": verdict.kind,
            "difference": by_label[verdict.label].difference,
            "source": by_label[verdict.label].sources,
        }
        for verdict in given
    ]


def _differences(grid: Grid, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return each row's difference to its baseline, for the plot of all differences."""
    return [
        {
            "label": row.arm.label,
            "mean": row.difference.mean,
            "text": grid.score.difference(row.difference.mean),
            "source": row.sources,
        }
        for row in rows
        if row.difference is not None and not row.is_baseline
    ]


def _span(grid: Grid, rows: Sequence[Row]) -> float:
    """Return the half width of the plot of differences around 0, in the unit of the score.

    A row that is far from its baseline, such as a control, would leave no room for the others. It
    is drawn at the edge, unless all rows are far from it.
    """
    differences = [row.difference for row in rows if row.difference and not row.is_baseline]
    near = [difference for difference in differences if abs(difference.mean) <= grid.comparable]
    ends = [
        end
        for difference in near or differences
        for end in (difference.low, difference.mean, difference.high)
    ]
    return max((abs(end) for end in ends if end is not None), default=0.0)
