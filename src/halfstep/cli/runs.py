"""`halfstep runs`: the runs under a folder, one line each."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from halfstep.train.after.runs import Run

_HEADER = (
    *("run", "config", "recipe", "seed", "status"),
    *("best", "at epoch", "final", "epochs", "when (UTC)"),
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("runs", short_help="List runs with their status and best accuracy.")(runs)


def runs(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="Folder to search for runs.")] = Path(
        "runs"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the runs under ROOT with their status and best accuracy."""
    from halfstep.files import json_text
    from halfstep.train.after.runs import find

    listed = find(root)
    if as_json:
        rows = [
            {**asdict(run), "path": str(run.path), "when": run.when.isoformat()} for run in listed
        ]
        typer.echo(json_text(rows, indent=2))
    elif listed:
        typer.echo(_table([_HEADER, *(_cells(run, root) for run in listed)]))
    else:
        typer.echo(f"no runs under {str(root)!r}; halfstep train writes them", err=True)


def _cells(run: Run, root: Path) -> tuple[str, ...]:
    return (
        str(run.path.relative_to(root)) if run.path != root else str(root),
        run.config,
        run.recipe,
        _number(run.seed),
        run.status,
        _percent(run.best_accuracy),
        _number(run.best_epoch),
        _percent(run.final_accuracy),
        f"{run.epochs}/{_number(run.planned_epochs) or '?'}",
        f"{run.when:%Y-%m-%d %H:%M}",
    )


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
