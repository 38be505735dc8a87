"""Recipes: what format each part of a training step uses, and the named ones.

Nothing here imports torch; `Recipe.resolve` does when called.
"""

from halfstep.recipe.fields import Float8, HalfFormat, Matmul, ParamFormat, Recipe, Update
from halfstep.recipe.loss_scale import LossScale
from halfstep.recipe.table import RECIPES, recipe, recipes

__all__ = [
    "RECIPES",
    "Float8",
    "HalfFormat",
    "LossScale",
    "Matmul",
    "ParamFormat",
    "Recipe",
    "Update",
    "recipe",
    "recipes",
]
