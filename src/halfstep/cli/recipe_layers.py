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
            json_text([{**asdict(layer), "computes": layer.computes} for layer in layers], indent=2)
        )
        return
    columns = ("layer", "in", "out", "samples", "gain", "computes", "why")
    formats = {"left out": recipe.format_of_left_out}
    rows = [
        (
            layer.name,
            str(layer.inputs),
            str(layer.outputs),
            "" if layer.samples is None else str(layer.samples),
            "" if layer.gain is None else f"{layer.gain:.2f} ({layer.source})",
            f"in {formats.get(layer.computes, recipe.product_format)}",
            layer.reason or layer.how,
        )
        for layer in layers
    ]
    print_table(columns, rows, as_markdown=as_markdown)
    counts = Counter(layer.computes for layer in layers)
    text = ", ".join(f"{count} {how}" for how, count in counts.most_common())
    typer.echo(f"{recipe.name} on {on}: {text} of {len(layers)} layers")
