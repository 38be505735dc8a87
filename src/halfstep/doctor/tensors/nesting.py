"""Tensors inside what functions take and return, however nested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DEPTH = 5
_PLAIN = (str, bytes, int, float, bool, type(None), torch.nn.Module, type)


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, in an order that only its structure decides."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and not isinstance(value, _PLAIN):
        for each in _parts(value):
            yield from tensors_in(each, depth - 1)


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
    """Return a value with each leaf of its lists, tuples and dicts changed."""
    kind = type(value)
    if kind is tuple:
        return tuple([exchange(each, change) for each in value])
    if kind is list:
        return [exchange(each, change) for each in value]
    if kind is dict:
        return {name: exchange(each, change) for name, each in value.items()}
    if isinstance(value, torch.Tensor | int | float | str | None):
        return change(value)
    return tree_map(change, value, is_leaf=lambda leaf: isinstance(leaf, torch.Tensor))
