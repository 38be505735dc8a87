"""Mixed-precision training you can trust: every number format behind one recipe.

The public face. Names that need torch are imported when first used, so that `halfstep --help` and
reading the table of recipes stay instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from halfstep.recipe import LossScale, Recipe, recipe, recipes

if TYPE_CHECKING:
    from halfstep.doctor import watch
    from halfstep.engine import Engine, StepResult, shard
    from halfstep.kernels.cpu_half import cpu_half

__all__ = [
    "Engine",
    "LossScale",
    "Recipe",
    "StepResult",
    "__version__",
    "cpu_half",
    "recipe",
    "recipes",
    "shard",
    "watch",
]
__version__ = "0.1.0"

_NEEDS_TORCH = {
    "Engine": "halfstep.engine",
    "StepResult": "halfstep.engine",
    "cpu_half": "halfstep.kernels.cpu_half",
    "shard": "halfstep.engine",
    "watch": "halfstep.doctor",
}


def __getattr__(name: str) -> Any:
    if name in _NEEDS_TORCH:
        return getattr(importlib.import_module(_NEEDS_TORCH[name]), name)
    raise AttributeError(f"module 'halfstep' has no attribute {name!r}")
