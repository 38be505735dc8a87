"""Norms of the program's own classes: modules that call `batch_norm` with their own buffers."""

from __future__ import annotations

import ast
import inspect
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from halfstep.doctor.record.sites import is_of_user
from halfstep.doctor.signals.program.mode_use import global_value, statements_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

_PARAMETERS = tuple(inspect.signature(functional.batch_norm).parameters)


class OwnNorm:
    """Such a module, with the attributes of torch's norms.

    Args:
        module: The module.
        given: The arguments of its call of `batch_norm`, by the names of the parameters.
        owner: The variable of the module in its method.
    """

    def __init__(self, module: nn.Module, given: dict[str, ast.expr], owner: str) -> None:
        self._module = weakref.ref(module)
        self._given, self._owner = given, owner
        self.kind = type(module).__name__

    def __getattr__(self, name: str) -> Any:
        """Return the value of an argument; None if it is no attribute and no number."""
        node, module = self._given.get(name), self._module()
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return getattr(module, node.attr, None) if node.value.id == self._owner else None
        return None

    @property
    def training(self) -> bool:
        """Whether the module is in training mode."""
        module = self._module()
        return module is not None and module.training


def own_norms(module: nn.Module) -> Iterator[OwnNorm]:
    """Yield a module of a class of the user, if it calls `batch_norm` with its own buffers."""
    for kind in type(module).__mro__:
        for method in vars(kind).values():
            if isinstance(method, FunctionType) and is_of_user(method.__code__.co_filename):
                yield from _called_in(method, module)


def _called_in(method: FunctionType, module: nn.Module) -> Iterator[OwnNorm]:
    if "batch_norm" not in method.__code__.co_names or not method.__code__.co_argcount:
        return
    for node in (inner for each in statements_of(method) for inner in ast.walk(each)):
        if not isinstance(node, ast.Call):
            continue
        if getattr(global_value(node.func, method), "__name__", "") != "batch_norm":
            continue
        given = dict(zip(_PARAMETERS, node.args, strict=False))
        given |= {each.arg: each.value for each in node.keywords if each.arg}
        norm = OwnNorm(module, given, method.__code__.co_varnames[0])
        if all(isinstance(each, torch.Tensor) for each in (norm.running_mean, norm.running_var)):
            yield norm
