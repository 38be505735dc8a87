"""Says which recipes lose small gradients for every model, however safe the first steps are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.formats import FORMATS
from halfstep.recipe import recipe

if TYPE_CHECKING:
    from collections.abc import Iterable

_SCALED = "fp16 and o2 scale it"


def lines(recipes: Iterable[str]) -> list[str]:
    """Return a line that names those of some recipes that compute in fp16 without a loss scale.

    Args:
        recipes: Names of recipes, or names joined by "+".
    """
    named = [name for name in dict.fromkeys(recipes) if recipe(name).lacks_loss_scale]
    if not named:
        return []
    verb = "does" if len(named) == 1 else "do"
    smallest = FORMATS["fp16"].smallest_subnormal / 2
    said = (
        f"{' and '.join(named)} {verb} not scale the loss: gradients below {smallest:.0e} become 0 "
        f"(they underflow), and gradients shrink during training; {_SCALED}"
    )
    return [said]
