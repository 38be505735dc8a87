"""Mixed-precision training: one recipe sets every number format of a training step.

This module holds the public names. Names that need more than the recipes, often torch, are imported
at their first use, so that `halfstep --help` and listing the recipes stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from halfstep import versions
from halfstep.recipe import LossScale, Recipe, recipes

if TYPE_CHECKING:
    from halfstep.compare import compare  # at runtime, this name is a callable module
    from halfstep.doctor import watch
    from halfstep.engine import (
        EMA,
        SWA,
        Engine,
        LossScaleCollapse,
        NonFiniteGradients,
        StepResult,
        load_sharded,
        save_sharded,
        shard,
    )
    from halfstep.mechanisms.cpu_half import cpu_half
    from halfstep.recipe import recipe  # at runtime, this name is a callable module
    from halfstep.train.objects.fit import fit
    from halfstep.train.python import (
        evaluate,
        predict,
        train,  # at runtime, this name is a callable module too
    )
    from halfstep.train.run.observer import Observer

__all__ = [
    "EMA",
    "SWA",
    "Engine",
    "LossScale",
    "LossScaleCollapse",
    "NonFiniteGradients",
    "Observer",
    "Recipe",
    "StepResult",
    "__version__",
    "compare",
    "cpu_half",
    "evaluate",
    "fit",
    "load_sharded",
    "predict",
    "recipe",
    "recipes",
    "save_sharded",
    "shard",
    "train",
    "watch",
]
__version__ = versions.HALFSTEP

_ENGINE = (
    "EMA", "SWA", "Engine", "LossScaleCollapse", "NonFiniteGradients", "StepResult",
    "load_sharded", "save_sharded", "shard",
)  # fmt: skip
_ELSEWHERE = dict.fromkeys(_ENGINE, "halfstep.engine") | {
    "cpu_half": "halfstep.mechanisms.cpu_half",
    "evaluate": "halfstep.train.python",
    "fit": "halfstep.train.objects.fit",
    "Observer": "halfstep.train.run.observer",
    "predict": "halfstep.train.python",
    "watch": "halfstep.doctor",
}


def __getattr__(name: str) -> Any:
    if name in {"compare", "train"}:
        return importlib.import_module(f"halfstep.{name}")
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'halfstep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
