"""`halfstep eval RUN`: the result of a run's checkpoint, compared with the recorded one."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from halfstep.cli.start_up import without_collections
from halfstep.cli.train import ColumnsFlag, DeviceFlag

if TYPE_CHECKING:
    from halfstep.train.after.evaluate import Evaluation


class Which(StrEnum):
    """The two named checkpoints of a run."""

    best = "best"
    last = "last"


CheckpointFlag = Annotated[
    Which, typer.Option(help="The checkpoint with the highest accuracy, or the last one.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval", short_help="Evaluate a checkpoint of a run.")(evaluate)


def evaluate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/digits/fp32-seed0.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV", help="Evaluate on the images of this CSV file (columns image, label)."
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            help="Image folder. Without --data, it replaces data.root of the config. With --data, "
            "it is the base folder of the paths in the CSV file; default: the file's folder."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write classes.csv and confusion.csv to.")
    ] = None,
    columns: ColumnsFlag = None,
    checkpoint: CheckpointFlag = Which.best,
    device: DeviceFlag = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with the recall of each class.")
    ] = False,
) -> None:
    """Evaluate a checkpoint of RUN on its validation split, or on the images of a CSV file.

    Exit code 1: the result on the validation split differs from the one that the run recorded, or
    an image cannot be read.
    """
    from halfstep.train.after.run_config import config_of

    config_of(run, device)  # refuses a wrong directory before torch is imported
    with without_collections():
        from halfstep.files import json_text
        from halfstep.train.after import evaluate as evaluation
        from halfstep.train.data.sources.csv_rows import columns_of
        from halfstep.train.task.metrics import write_tables

    which: Literal["best", "last"] = checkpoint.value
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
    text = f"accuracy {measured.accuracy:.2%}, loss {measured.loss:.6f}{top5}"
    text += f", macro-F1 {measured.macro_f1:.2%}"
    if result.recall:
        worst = min(result.recall, key=result.recall.__getitem__)
        text += f", lowest recall {result.recall[worst]:.2%} ({worst})"
    if recorded is None:
        return text
    if result.matches:
        return f"{text}, as the run recorded"
    return (
        f"{text}, but the run recorded {recorded.accuracy:.2%}, loss {recorded.loss:.6f}; "
        "compare environment.json with this machine"
    )
