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
    """Print which layers of a model multiply in FP8 under a recipe, and why the others do not.

    Raises:
        UserError: If the arguments do not name one recipe with FP8 products, a device and a model.
    """
    from halfstep.advise.subject import model_of
    from halfstep.cli.recipes import print_table
    from halfstep.files import json_text
    from halfstep.mechanisms.float8.explain import explained, gains_on

    if len(recipes) != 1 or recipes[0].get("float8") is None:
        given = " and ".join(recipe.name for recipe in recipes) or "no recipe"
        raise UserError(f"--model explains one recipe with FP8 products, not {given}; write fp8")
    if on is None:
        raise UserError("--model is given without --on; write --on cuda or --on h200")
    (recipe,) = recipes
    gains = gains_on(on)
    layers = explained(recipe, model_of(model, "--model"), gains, samples)
    if as_json:
        typer.echo(
            json_text([{**asdict(each), "computes": each.computes} for each in layers], indent=2)
        )
        return
    columns = ("layer", "in", "out", "samples", "gain over bf16", "computes", "why")
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
    where = on if gains is None else gains.key
    said = ", ".join(f"{count} {how}" for how, count in counts.most_common())
    typer.echo(f"{recipe.name} on {where}: {said} of {len(layers)} layers")
