"""From a config to a run: data, model, optimizer, the loop, and the directory that a run leaves.

`config` does not import torch, so that listing and checking configs stays instant;
everything that trains starts at `loop.train`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """`halfstep.train` is this package and, as `halfstep.train("digits")`, `python.train`."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return importlib.import_module("halfstep.train.python").train(*given, **named)


sys.modules[__name__].__class__ = _Callable
