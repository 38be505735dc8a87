"""`halfstep configs`: the configs that ship, one line each."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("configs", short_help="List the configs that ship.")(configs)


def configs(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the configs that ship: what halfstep train and halfstep compare take by name."""
    from halfstep.train.config_files import load, shipped
    from halfstep.train.files import json_text

    rows = [
        {"name": name, "description": load(name).description, "file": str(file)}
        for name, file in shipped().items()
    ]
    if as_json:
        typer.echo(json_text(rows, indent=2))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        typer.echo(f"{row['name']:{width}}  {row['description']}")
