"""`halfstep train CONFIG`: one run of one config under one recipe and seed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from halfstep.train.run_directory import Summary

OptionsFlag = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE ...",
        help="Override the config, values in YAML: --options optimizer.lr=0.02 epochs=3",
    ),
]
DeviceFlag = Annotated[
    str | None, typer.Option(metavar="auto|cpu|cuda[:N]", help="Where to run; auto by default.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train", short_help="Train one config under one recipe and seed.")(train)


def train(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A shipped config's name, or a YAML file.")
    ],
    tag: Annotated[
        str | None, typer.Option(help="Names the run directory; by default its recipe and seed do.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A recipe, or several joined by '+'; see halfstep recipes.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the initial weights and the order of the images.")
    ] = None,
    device: DeviceFlag = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory; runs/CONFIG/TAG by default.")
    ] = None,
    options: OptionsFlag = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a finished run of another config.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Draw no progress bar.")] = False,
) -> None:
    """Train CONFIG and leave a run directory: config, metrics, checkpoints, summary."""
    from halfstep.train import config_files, run_directory

    flags = {"recipe": recipe, "seed": seed, "device": device}
    chosen = config_files.load(config, options or [], flags)
    run = out or run_directory.place(chosen, tag)

    from halfstep.train.loop import train as train_run

    summary = train_run(chosen, run, tag=tag, overwrite=overwrite, quiet=quiet)
    typer.echo(_report(summary, run))
    if summary.status != "finished":
        typer.echo(f"{summary.status}: {summary.error} (the run lies in {str(run)!r})", err=True)
        raise typer.Exit(1)


def _report(summary: "Summary", run: Path) -> str:
    memory = f"{summary.peak_memory_bytes / 2**20:.0f} MiB ({summary.peak_memory_kind})"
    accuracy = (
        "no epoch finished"
        if summary.best_accuracy is None
        else f"best accuracy {summary.best_accuracy:.2%} (epoch {summary.best_epoch}), "
        f"final {summary.final_accuracy:.2%}"
    )
    return (
        f"{summary.config} {summary.recipe} seed {summary.seed}: {accuracy}; trained "
        f"{summary.train_seconds:.1f} s at {summary.images_per_second:.0f} images/s, {memory}, "
        f"{summary.skipped_steps} steps skipped\nrun: {run}"
    )
