"""Recipes: what format each part of a training step uses, and the named ones.

Nothing here imports torch until a recipe is resolved or carried out.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from halfstep.loss_scale import LossScale
from halfstep.recipe.parts import PARTS, Part
from halfstep.recipe.recipe import Recipe
from halfstep.recipe.table import RECIPES, recipe, recipes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PARTS", "RECIPES", "LossScale", "Part", "Recipe", "recipe", "recipes"]


class _Callable(ModuleType):
    """`halfstep.recipe` is this module and, as `halfstep.recipe("fp16")`, the function `recipe`."""

    def __call__(self, spec: str | Recipe | Mapping[str, Any]) -> Recipe:
        return recipe(spec)


sys.modules[__name__].__class__ = _Callable
