"""`halfstep eval RUN`: what a run's checkpoint gives, beside what the run recorded."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from halfstep.cli.notices import in_one_line
from halfstep.cli.start_up import without_collections
from halfstep.cli.train import ColumnsFlag, DeviceFlag

if TYPE_CHECKING:
    from halfstep.train.after.evaluate import Evaluation


class Which(StrEnum):
    """The two checkpoints of a run that have names."""

    best = "best"
    last = "last"


CheckpointFlag = Annotated[
    Which, typer.Option(help="The one of highest accuracy, or of the last epoch.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval", short_help="Evaluate a run's checkpoint against what the run recorded.")(
        evaluate
    )


def evaluate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/digits/fp32-seed0.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Other images than the run's: columns image and label."),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            help="Where the images lie now: in place of data.root, or for paths in --data (whose "
            "own folder it is by default)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for classes.csv and confusion.csv.")
    ] = None,
    columns: ColumnsFlag = None,
    checkpoint: CheckpointFlag = Which.best,
    device: DeviceFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Print what RUN's checkpoint gives on its validation split, or on the images of a CSV file.

    Exits with 1 when its own split does not give what the run recorded, or when an image cannot be
    read.
    """
    with without_collections():
        from halfstep.files import json_text
        from halfstep.train.after import evaluate as evaluation
        from halfstep.train.data.sources.csv_rows import columns_of
        from halfstep.train.run.metrics import write_tables

    which: Literal["best", "last"] = checkpoint.value
    with in_one_line():
        if data is None:
            result = evaluation.evaluate(run, which, device, root)
        else:
            named = columns_of(columns) if columns is not None else None
            result = evaluation.evaluate_on(run, data, which, device, root, named)
    if out is not None and result.measured.confusion is not None:
        write_tables(out, result.measured.confusion, result.classes)
    if as_json:
        typer.echo(json_text(_plain(result)))
    else:
        typer.echo(f"{run} ({which}, epoch {result.epoch}): {_said(result)}")
    for line in result.unreadable:
        typer.echo(f"left out: {line}", err=True)
    if result.matches is False or result.unreadable:
        raise typer.Exit(1)


def _plain(result: "Evaluation") -> dict[str, Any]:
    return {
        "measured": result.measured.scalars(),
        "recorded": result.recorded.scalars() if result.recorded else None,
        "recall": result.recall,
        "epoch": result.epoch,
        "device": result.device,
        "matches": result.matches,
        "unreadable": result.unreadable,
    }


def _said(result: "Evaluation") -> str:
    measured, recorded = result.measured, result.recorded
    top5 = "" if measured.top5 is None else f", top-5 {measured.top5:.2%}"
    said = f"accuracy {measured.accuracy:.2%}, loss {measured.loss:.6f}{top5}"
    said += f", macro-F1 {measured.macro_f1:.2%}"
    if result.recall:
        worst = min(result.recall, key=result.recall.__getitem__)
        said += f", lowest recall {result.recall[worst]:.2%} ({worst})"
    if recorded is None:
        return said
    if result.matches:
        return f"{said}, as the run recorded"
    return (
        f"{said}, but the run recorded {recorded.accuracy:.2%}, loss {recorded.loss:.6f}; "
        "compare environment.json with this machine"
    )
