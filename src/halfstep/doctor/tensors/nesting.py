"""Finds and replaces tensors in the nested arguments and results of functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_DEPTH = 5
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_EMPTY = frozenset({str, bytes, int, float, bool, type(None), torch.dtype, torch.device, type})
_LEAVES = _TENSORS | {int, float, bool, str, type(None)}
_PLAIN = (str, bytes, int, float, bool, torch.nn.Module, type)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value, in an order that depends only on its structure."""
    found: list[torch.Tensor] = []
    _collect(value, _DEPTH, found)
    return found


def is_in_graph(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is the result of an operator in an autograd graph."""
    try:
        return tensor.requires_grad and not tensor.is_leaf
    except RuntimeError:  # a view made in no_grad, whose base was changed in place afterwards
        return False


def _collect(value: Any, depth: int, found: list[torch.Tensor]) -> None:
    # This runs for every call of the loop, so the usual types are compared by identity.
    kind = type(value)
    if kind in _TENSORS:
        found.append(value)
    elif kind in _EMPTY:
        return
    elif kind is tuple or kind is list or kind is dict:
        for each in (value.values() if kind is dict else value) if depth else ():
            its = type(each)
            if its in _TENSORS:
                found.append(each)
            elif its not in _EMPTY:
                _collect(each, depth - 1, found)
    elif isinstance(value, torch.Tensor):
        found.append(value)
    elif depth and not isinstance(value, _PLAIN):
        for each in _parts(value):
            _collect(each, depth - 1, found)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if is_dataclass(value):
        return [getattr(value, each.name, None) for each in fields(value)]
    if hasattr(value, "__dict__") and not callable(value):
        attributes: dict[str, Any] = vars(value)
        return list(attributes.values())
    return ()


def exchange(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a nested value in which `change` has replaced each leaf."""
    kind = type(value)
    if kind is tuple:
        return tuple([exchange(each, change) for each in value])
    if kind is list:
        return [exchange(each, change) for each in value]
    if kind is dict:
        return {name: exchange(each, change) for name, each in value.items()}
    if kind in _LEAVES or isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        # Not kind(...), because the constructor of PackedSequence checks its fields.
        return tuple.__new__(kind, [exchange(each, change) for each in value])
    return tree_map(change, value, is_leaf=lambda leaf: isinstance(leaf, torch.Tensor))
