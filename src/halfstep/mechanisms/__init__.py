"""The mechanisms of low-precision training: one folder for each field of a recipe.

A folder contains all that is true of its field: the `Part` in `field.py`, which needs no torch
(values, conflicts, what devices and parallel strategies make of it), and the `Technique` with its
kernels, if the field has one. To add a field, add a folder; no other file changes.
"""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

from halfstep.mechanisms.part import (
    PARTS,
    Count,
    CountedProduct,
    Datasheet,
    ExplainedLayer,
    Part,
    Samples,
    Use,
)

for _folder in iter_modules(__path__):
    if _folder.ispkg and find_spec(f"{__name__}.{_folder.name}.field"):
        import_module(f"{__name__}.{_folder.name}.field")

__all__ = [
    "PARTS",
    "Count",
    "CountedProduct",
    "Datasheet",
    "ExplainedLayer",
    "Part",
    "Samples",
    "Use",
]
