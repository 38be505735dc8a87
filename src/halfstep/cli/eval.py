"""`halfstep eval RUN`: what a run's checkpoint gives, beside what the run recorded."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from halfstep.cli.train import DeviceFlag


class _Checkpoint(StrEnum):
    best = "best"
    last = "last"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eval", short_help="Evaluate a run's checkpoint against what the run recorded.")(
        evaluate
    )


def evaluate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/digits/fp32-seed0.")
    ],
    checkpoint: Annotated[
        _Checkpoint, typer.Option(help="The one of highest accuracy, or of the last epoch.")
    ] = _Checkpoint.best,
    device: DeviceFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Print accuracy and loss of RUN's checkpoint on the validation split.

    Exits with 1 when they are not what the run recorded.
    """
    from halfstep.train.evaluate import evaluate as evaluate_run
    from halfstep.train.files import json_text

    result = evaluate_run(run, checkpoint.value, device)
    if as_json:
        typer.echo(json_text({**asdict(result), "matches": result.matches}))
    else:
        measured, recorded = result.measured, result.recorded
        verdict = (
            "as the run recorded"
            if result.matches
            else f"but the run recorded {recorded.accuracy:.2%}, loss {recorded.loss:.6f}; "
            f"compare environment.json with this machine"
        )
        typer.echo(
            f"{run} ({checkpoint.value}, epoch {result.epoch}): accuracy {measured.accuracy:.2%}, "
            f"loss {measured.loss:.6f}, {verdict}"
        )
    if not result.matches:
        raise typer.Exit(1)
