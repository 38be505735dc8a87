"""`halfstep init DIR`: a config for the user's own images."""

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
        Path | None, typer.Option(help="Config file to write; default: DIR.yaml.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
) -> None:
    """Inspect images in folders or in CSV files, and write a config that trains on them.

    The images are in one folder per class, optionally inside folders train and val, or are listed
    with their labels in a CSV file. If there is no validation split, a fifth of the images is used
    for validation, and two CSV files beside the config list the split.
    """
    from halfstep.train.data.audit.propose import propose

    file = out or Path(f"{place.resolve().stem}.yaml")
    for line in propose(place, file, overwrite=overwrite):
        typer.echo(line)
