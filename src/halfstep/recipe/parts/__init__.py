"""The fields of a recipe, one file each. To add a field, add a file; no other file changes."""

from importlib import import_module
from pkgutil import iter_modules

from halfstep.recipe.parts.part import PARTS, Part, Use

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["PARTS", "Part", "Use"]
