"""`halfstep recipes`: the table of named recipes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from halfstep.cli.plain_table import print_table
from halfstep.errors import UserError
from halfstep.recipe import PARTS, RECIPES, recipe

if TYPE_CHECKING:
    from halfstep.recipe import Recipe

COLUMNS = ("recipe", "sets", "purpose")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("recipes", short_help="List the recipes and what they set.")(recipes)


def recipes(
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE",
            help="Recipes to list: names, names joined with '+', or mappings such as "
            "'{base: o2, loss_scale: 128}'; default: all named recipes.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown table.")
    ] = False,
    fields: Annotated[
        bool, typer.Option("--fields", help="List the fields of a recipe and their values.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="cpu|cuda[:N]",
            help="Add a column: whether this device runs the recipe natively, rehearses or refuses "
            "it. With --model also a GPU that is not here, such as h200.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="Explain, for one recipe such as fp8, what becomes of each layer of the model "
            "that your function returns. The function's file is executed.",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            min=1,
            help="With --model: the tokens of a batch, or its pixels for 1x1 convolutions.",
        ),
    ] = None,
) -> None:
    """List the recipes: the purpose of each, and the fields that it sets.

    Wherever a recipe is expected, several can be joined with '+'.

        halfstep recipes fp8 --on h200 --model model.py:build --samples 8192
    """
    from halfstep.files import json_text

    if as_json and as_markdown:
        raise UserError("--json and --markdown are both given; write one of them")
    if fields:
        _print_fields(as_json=as_json, as_markdown=as_markdown)
        return
    listed = [_read(spec) for spec in specs or ()]
    if model is not None:
        from halfstep.cli.recipe_layers import explain

        explain(listed, model, on, samples, as_json=as_json, as_markdown=as_markdown)
        return
    if samples is not None:
        raise UserError("--samples is given without --model; write --model model.py:build")
    rows_of = {named.name: (named, _purpose(named)) for named in listed} or RECIPES
    resolved = {name: row.resolve(on) for name, (row, _) in rows_of.items()} if on else {}
    if as_json:
        rows = [
            {"name": name, "purpose": purpose, "settings": row.settings()}
            | ({f"on {on}": asdict(resolved[name])["parts"]} if on else {})
            for name, (row, purpose) in rows_of.items()
        ]
        typer.echo(json_text(rows, indent=2))
        return
    columns = (*COLUMNS, f"on {on}") if on else COLUMNS
    rows_of_text = [
        (
            name,
            ", ".join(map(str, row.parts)),
            purpose,
            *([resolved[name].how] if on else []),
        )
        for name, (row, purpose) in rows_of.items()
    ]
    print_table(columns, rows_of_text, as_markdown=as_markdown)


def _read(spec: str) -> Recipe:
    from halfstep.yaml_text import parse

    return recipe(parse(spec, f"recipe {spec!r}") if spec.lstrip().startswith("{") else spec)


def _purpose(chosen: Recipe) -> str:
    """Return the purpose of a named recipe; "" for any other recipe."""
    row, purpose = RECIPES.get(chosen.name, (None, ""))
    return purpose if chosen == row else ""


def _print_fields(*, as_json: bool, as_markdown: bool) -> None:
    in_order = sorted(PARTS.values(), key=lambda part: part.place)
    values = {
        part.field: {str(value): meaning for value, meaning in part.allowed.items()}
        for part in in_order
    }
    if as_json:
        from halfstep.files import json_text

        rows = [
            {"field": part.field, "purpose": part.purpose, "values": values[part.field]}
            for part in in_order
        ]
        typer.echo(json_text(rows, indent=2))
        return
    rows_of_text = [
        (
            part.field,
            "; ".join(f"{value}: {meaning}" for value, meaning in values[part.field].items()),
            part.purpose,
        )
        for part in in_order
    ]
    print_table(("field", "values", "purpose"), rows_of_text, as_markdown=as_markdown)
