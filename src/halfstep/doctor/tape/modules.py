"""Tracks which module runs: the stack of module calls, kept only while a step is traced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the user's model, without parallel and compiled wrappers."""
    while isinstance(model, DistributedDataParallel | DataParallel | torch._dynamo.OptimizedModule):
        inner = getattr(model, "_orig_mod", None)
        model = model.module if inner is None else inner
    return model


class ModuleStack:
    """The modules whose forward is running, outermost first, with their names in the models.

    Attributes:
        on: Whether calls of modules are followed.
    """

    def __init__(self) -> None:
        self.on = False
        self._names: dict[int, str] = {}
        self._stack: list[tuple[str, str]] = []

    def start(self, models: Iterable[nn.Module]) -> None:
        """Start to follow the calls of modules in these models."""
        self._names = {
            id(module): name
            for model in models
            for name, module in unwrapped(model).named_modules()
        }
        self._stack = []
        self.on = True

    def stop(self) -> None:
        """Stop following calls."""
        self.on = False
        self._stack = []

    def enter(self, module: nn.Module) -> None:
        """Note that a module is called."""
        self._stack.append((self._names.get(id(module), ""), type(module).__name__))

    def leave(self) -> None:
        """Note that the innermost module has returned."""
        if self._stack:
            self._stack.pop()

    def where(self) -> tuple[str, str]:
        """Return path and class of the innermost module; "" outside of models."""
        return self._stack[-1] if self._stack else ("", "")
