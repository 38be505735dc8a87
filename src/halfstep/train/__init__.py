"""Turns a config into a run: the data, model and optimizer, the loop, and the run directory.

`config` does not import torch, so that configs are listed and checked without delay. Training
starts in `loop.loop.train`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """Makes this package callable: `halfstep.train("digits")` calls `python.train`."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return importlib.import_module("halfstep.train.python").train(*given, **named)


sys.modules[__name__].__class__ = _Callable
