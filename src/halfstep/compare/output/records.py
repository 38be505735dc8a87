"""A comparison as plain data for programs: JSON with everything, and flat records for data frames.

A flat record is one cell, with one value per column, so that any tool can group and plot the cells.
"""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from halfstep.compare.rows.measures import measures_of
from halfstep.compare.rows.one_seed import conclusions
from halfstep.compare.rows.rows import rows_by_arm
from halfstep.compare.rows.verdict import plans_judged, verdicts
from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.compare.cells.results import Result
    from halfstep.compare.plan.grid import Grid
    from halfstep.compare.rows.predicted import Prediction
    from halfstep.compare.rows.rows import Row


def as_json(
    grid: Grid, results: Sequence[Result], predicted: Sequence[Prediction] = ()
) -> dict[str, Any]:
    """Return the comparison as plain data: the rows, and the cells with their summaries.

    All predicted figures are separate, under the key `predicted`.
    """
    rows = rows_by_arm(grid, results)
    concluded = conclusions(grid, rows, predicted)
    return {
        "config": grid.config,
        "device": grid.device,
        "processes": grid.processes,
        "recipes": list(grid.recipes),
        "seeds": list(grid.seeds),
        "options": list(grid.options),
        "points": [list(point) for point in grid.points],
        "margin": grid.margin,
        "score": asdict(grid.score),
        "looks": list(grid.looks),
        "plans": [list(looks) for looks in plans_judged(grid, rows)],
        "checks": dict(grid.checks),
        "complete": all(result.status not in ("pending", "crashed") for result in results),
        "rows": [_row(row) for row in rows],
        "verdicts": [asdict(verdict) for verdict in verdicts(grid, rows, predicted)],
        "recipe_to_use": None if concluded is None else concluded.answer,
        "cells": [
            {
                "recipe": result.cell.recipe,
                "point": list(result.cell.arm.point),
                "seed": result.cell.seed,
                "status": result.status,
                "reason": result.reason,
                "cause": result.cause,
                "directory": result.cell.directory.name,
                "fingerprint": result.cell.fingerprint,
                "environment": dict(result.environment),
                "summary": dict(result.summary),
            }
            for result in results
        ],
        "predicted": {prediction.key: prediction.as_json() for prediction in predicted},
    }


def flat_records(grid: Grid, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return one record per cell, all with the same keys; unknown values are None."""
    return [
        {
            "config": grid.config,
            "device": result.summary.get("device", grid.device),
            "processes": grid.processes,
            "recipe": result.cell.recipe,
            **dict(override.split("=", 1) for override in result.cell.arm.point),
            "seed": result.cell.seed,
            "status": result.status,
            "reason": result.reason,
            "cause": result.cause,
            **{measure.name: result.number(measure.name) for measure in measures_of(grid.score)},
            "first_nonfinite_step": result.number("first_nonfinite_step"),
            "source": f"{result.cell.directory.name}/run/summary.json",
        }
        for result in results
    ]


def csv_text(grid: Grid, results: Sequence[Result]) -> str:
    """Return the flat records as CSV; None is an empty field."""
    records = flat_records(grid, results)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue()


def write_parquet(path: Path, grid: Grid, results: Sequence[Result]) -> None:
    """Write the flat records as a Parquet file.

    Raises:
        UserError: If pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(
            "--export parquet needs pyarrow; write pip install 'halfstep[parquet]'"
        ) from error
    from halfstep.files import write_atomically

    table = pa.Table.from_pylist(flat_records(grid, results))
    write_atomically(path, lambda file: pq.write_table(table, file))


def _row(row: Row) -> dict[str, Any]:
    return {
        "recipe": row.recipe,
        "point": list(row.arm.point),
        "seed": row.seed,
        "status": row.status,
        "measures": {
            name: None if spread is None else asdict(spread)
            for name, spread in row.measures.items()
        },
        "first_nonfinite_step": row.first_nonfinite_step,
        "difference": None if row.difference is None else asdict(row.difference),
        "speed": None if row.speed is None else asdict(row.speed),
        "memory": None if row.memory is None else asdict(row.memory),
        "rehearsed": list(row.rehearsed),
        "disturbed": row.disturbed,
        "on_front": row.on_front,
        "sources": row.sources.split(),
    }
