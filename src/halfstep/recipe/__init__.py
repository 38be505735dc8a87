"""Recipes: which number format each part of a training step uses; the table of named recipes.

This package imports torch only when a recipe is resolved for a device or its techniques are built.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from halfstep.loss_scale import LossScale
from halfstep.mechanisms import PARTS, Part
from halfstep.recipe.recipe import Recipe
from halfstep.recipe.table import RECIPES, recipe, recipes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["PARTS", "RECIPES", "LossScale", "Part", "Recipe", "recipe", "recipes"]


class _Callable(ModuleType):
    """Makes this module callable: `halfstep.recipe("fp16")` calls the function `recipe`."""

    def __call__(self, spec: str | Path | Recipe | Mapping[str, Any]) -> Recipe:
        return recipe(spec)


sys.modules[__name__].__class__ = _Callable
