"""`halfstep recipes RECIPE --on DEVICE --model FILE.py:FUNCTION`: what becomes of each layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.recipe import Recipe


def explain(
    recipes: Sequence[Recipe],
    model: str,
    on: str | None,
    samples: int | None,
    *,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Print which layers of a model multiply in the format of a recipe, and why others do not.

    Raises:
        UserError: If the arguments do not name one recipe, a device and a model.
        ValueError: If the device is unknown, or the recipe changes no layers.
    """
    from halfstep.advise.subject import model_of
    from halfstep.cli.plain_table import print_table
    from halfstep.files import json_text

    if len(recipes) != 1:
        given = " and ".join(recipe.name for recipe in recipes) or "none"
        raise UserError(f"--model explains one recipe, but {given} is given; write fp8")
    if on is None:
        raise UserError("--model is given without --on; write --on cuda or --on h200")
    (recipe,) = recipes
    layers = recipe.explained(model_of(model, "--model"), on, samples)
    if as_json:
        typer.echo(
            json_text([{**asdict(each), "computes": each.computes} for each in layers], indent=2)
        )
        return
    columns = ("layer", "in", "out", "samples", "gain", "computes", "why")
    formats = {"left out": recipe.format_of_left_out}
    rows = [
        (
            each.name,
            str(each.inputs),
            str(each.outputs),
            "" if each.samples is None else str(each.samples),
            "" if each.gain is None else f"{each.gain:.2f} ({each.source})",
            f"in {formats.get(each.computes, recipe.product_format)}",
            each.reason or each.how,
        )
        for each in layers
    ]
    print_table(columns, rows, as_markdown=as_markdown)
    counts = Counter(each.computes for each in layers)
    said = ", ".join(f"{count} {how}" for how, count in counts.most_common())
    typer.echo(f"{recipe.name} on {on}: {said} of {len(layers)} layers")
