"""Tensors inside what functions take and return, however nested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEPTH = 5
_PLAIN = (str, bytes, int, float, bool, type(None), torch.nn.Module, type)


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, in an order that only its structure decides."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, _PLAIN) or depth == 0:
        return
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from tensors_in(each, depth - 1)
    elif is_dataclass(value):
        for each_field in fields(value):
            yield from tensors_in(getattr(value, each_field.name, None), depth - 1)
    elif hasattr(value, "__dict__") and not callable(value):
        for each in vars(value).values():
            yield from tensors_in(each, depth - 1)


def exchange(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with each leaf of its lists, tuples and dicts changed."""
    return tree_map(change, value, is_leaf=lambda leaf: isinstance(leaf, torch.Tensor))
