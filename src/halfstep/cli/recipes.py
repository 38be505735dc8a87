"""`halfstep recipes`: the table of named recipes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from halfstep.errors import UserError
from halfstep.recipe import RECIPES

COLUMNS = ("recipe", "sets", "purpose")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("recipes", short_help="List the recipes and what they set.")(recipes)


def recipes(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="For a page.")] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda[:N]",
            help="Add what this device really does: native, rehearsed or refused.",
        ),
    ] = None,
) -> None:
    """List the recipes: name, the fields that are set, and what each is for.

    Join several by '+' where a recipe is asked for.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from halfstep.train.files import json_text

    if as_json and as_markdown:
        raise UserError("--json and --markdown are both given; write one of them")
    resolved = {name: recipe.resolve(on) for name, (recipe, _) in RECIPES.items()} if on else {}
    if as_json:
        rows = [
            {"name": name, "purpose": purpose, "settings": recipe.settings()}
            | ({f"on {on}": asdict(resolved[name])["parts"]} if on else {})
            for name, (recipe, purpose) in RECIPES.items()
        ]
        typer.echo(json_text(rows, indent=2))
        return
    columns = (*COLUMNS, f"on {on}") if on else COLUMNS
    rows_of_text = [
        (
            name,
            _said(recipe.settings() | _shown(recipe.loss_scale)),
            purpose,
            *([resolved[name].how] if on else []),
        )
        for name, (recipe, purpose) in RECIPES.items()
    ]
    if as_markdown:
        for cells in (columns, ("---",) * len(columns), *rows_of_text):
            typer.echo(f"| {' | '.join(cells)} |")
        return
    table = Table(*columns, box=box.SIMPLE)
    for cells in rows_of_text:
        table.add_row(*cells)
    Console().print(table)


def _shown(loss_scale: object) -> dict[str, Any]:
    return {} if loss_scale is None else {"loss_scale": str(loss_scale)}


def _said(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
