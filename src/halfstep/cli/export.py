"""`halfstep export RUN`: a run's model in a format for other programs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from halfstep.cli.eval import Which
from halfstep.cli.start_up import without_collections


class _Format(StrEnum):
    safetensors = "safetensors"
    onnx = "onnx"
    torch = "torch"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export", short_help="Write a run's model as safetensors, ONNX or torch.export.")(
        export
    )


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/digits/fp32-seed0.")
    ],
    format_: Annotated[
        _Format,
        typer.Option(
            "--format",
            help="safetensors holds only the weights; onnx and torch hold a program for any batch "
            "size.",
        ),
    ] = _Format.safetensors,
    checkpoint: Annotated[
        Which,
        typer.Option(help="The checkpoint with the highest accuracy, or the last one."),
    ] = Which.best,
    out: Annotated[
        Path | None, typer.Option(help="File to write; default: RUN/export/CHECKPOINT.SUFFIX.")
    ] = None,
) -> None:
    """Export the model of RUN in fp32, with its class names and preprocessing."""
    from halfstep.train.after.run_config import config_of

    config_of(run)  # refuses a wrong directory before torch is imported
    with without_collections():
        from halfstep.train.after.export import export as export_run

    done = export_run(run, format_.value, which=checkpoint.value, file=out)
    checked = (
        ""
        if done.difference is None
        else f"; its logits differ from the model's by at most {done.difference:.1e}"
    )
    typer.echo(f"{done.file} ({checkpoint.value}, epoch {done.epoch}){checked}")
