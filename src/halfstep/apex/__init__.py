"""NVIDIA Apex's `amp` and the packages around it, in pure PyTorch, on CUDA and on a CPU.

Write `from halfstep.apex import amp`. To run a program unchanged, call `halfstep.apex.install()`
before its `from apex import amp`, or run `python -m halfstep.apex script.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from halfstep.apex.install import install, uninstall

if TYPE_CHECKING:
    from halfstep.apex import (
        amp,
        contrib,
        fp16_utils,
        multi_tensor_apply,
        normalization,
        optimizers,
        parallel,
    )

__all__ = [
    "amp",
    "contrib",
    "fp16_utils",
    "install",
    "multi_tensor_apply",
    "normalization",
    "optimizers",
    "parallel",
    "uninstall",
]

_PARTS = (
    *("amp", "contrib", "fp16_utils", "multi_tensor_apply"),
    *("normalization", "optimizers", "parallel"),
)


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"halfstep.apex.{name}")
    raise AttributeError(f"module 'halfstep.apex' has no attribute {name!r}")
