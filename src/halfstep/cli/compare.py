"""`halfstep compare`: every recipe on one config, and the table that settles which to use."""

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from halfstep.cli.train import DeviceFlag, OptionsFlag


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", short_help="Train one config under several recipes; print the table.")(
        compare
    )


def compare(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A shipped config's name, or a YAML file.")
    ],
    recipes: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="One row of the table each; the others are compared with the first.",
        ),
    ] = "fp32,fp16,bf16",
    seeds: Annotated[
        str,
        typer.Option(
            metavar="COUNT|N,...", help="How many seeds (3: seeds 0, 1 and 2), or which (0,7,9)."
        ),
    ] = "1",
    options: OptionsFlag = None,
    device: DeviceFlag = None,
    tag: Annotated[
        str | None, typer.Option(help="Keeps it apart from other comparisons of the config.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The comparison's directory; runs/compare/CONFIG[-TAG] by default."),
    ] = None,
    *,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run cells again that have a result.")
    ] = False,
) -> None:
    """Train CONFIG once for each recipe and seed, and compare accuracy, speed and memory.

    The same command goes on after an interruption: runs that have a result are not repeated.

    The exit code is 1 if a run crashed.
    """
    from rich.console import Console

    from halfstep.compare import comparison, directory, table
    from halfstep.compare.plan import plan, train_command

    planned = plan(
        config,
        recipes=recipes,
        seeds=seeds,
        options=options or (),
        device=device,
        tag=tag,
        out=out,
    )
    console = Console()
    before = signal.signal(signal.SIGTERM, _end_the_cell_too)
    try:
        results = comparison.compare(planned, train_command, console, fresh=fresh)
    finally:
        signal.signal(signal.SIGTERM, before)
    table.show(console, planned.grid, results)
    console.print(
        f"{directory.TABLE} and {directory.COMPARISON} are in {planned.directory}", soft_wrap=True
    )
    if any(result.status == "crashed" for result in results):
        raise typer.Exit(1)


def _end_the_cell_too(number: int, frame: FrameType | None) -> None:
    """Leave by an exception, which ends the running cell; the default would orphan it."""
    del frame
    raise SystemExit(128 + number)
