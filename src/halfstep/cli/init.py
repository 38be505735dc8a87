"""`halfstep init DIR`: a config for images that somebody has."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init", short_help="Inspect your images; write a config for them.")(init)


def init(
    place: Annotated[
        Path, typer.Argument(metavar="DIR|CSV", help="A folder of images, or a CSV file.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The config to write; DIR.yaml here by default.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there already.")
    ] = False,
) -> None:
    """Look at images in folders or listed by CSV files, and write a config that trains on them.

    A folder for each class will do, with or without train and val above them; so will a CSV file
    that names images and labels. Images without a split are split, a fifth for validation.
    """
    from halfstep.train.data.audit.propose import propose

    file = out or Path(f"{place.resolve().stem}.yaml")
    for line in propose(place, file, overwrite=overwrite):
        typer.echo(line)
