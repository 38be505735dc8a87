"""Recipes: which number format each part of a training step uses; the table of named recipes.

This package imports torch only when a recipe is resolved for a device or its techniques are built.
A call of the package, `halfstep.recipe("fp16")`, calls `table.recipe`.
"""

from halfstep.callable_module import make_callable
from halfstep.loss_scale import LossScale
from halfstep.mechanisms import PARTS, Part
from halfstep.recipe.recipe import Recipe
from halfstep.recipe.table import RECIPES, recipe, recipes

__all__ = ["PARTS", "RECIPES", "LossScale", "Part", "Recipe", "recipe", "recipes"]

make_callable(__name__, recipe)
