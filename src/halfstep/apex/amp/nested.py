"""Casts the tensors in a model's inputs and outputs, also in nested containers.

Containers keep their type, except immutable mappings, which become dicts. Objects that are neither
tensors nor containers and have no method `to` are returned unchanged.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from torch import nn

_LEFT_ALONE = (str, bytes, np.ndarray, nn.Module)
_SEQUENCES = (list, tuple, set, frozenset, deque)


def cast_nested(value: Any, dtype: torch.dtype) -> Any:
    """Cast every floating-point tensor in `value`.

    Args:
        value: A tensor; lists, tuples, named tuples, sets and mappings of tensors; or an object
            with a method `to(dtype)`, such as a batch of the user's own class. `to` is then called.
        dtype: The format to cast floating-point tensors to; other tensors are not changed.

    Returns:
        A value of the same structure; `value` itself is not changed.
    """
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, _LEFT_ALONE):
        return value
    if hasattr(value, "to"):
        return value.to(dtype)
    if isinstance(value, Mapping):
        return _cast_mapping(value, dtype)
    if isinstance(value, _SEQUENCES):
        items = [cast_nested(item, dtype) for item in value]
        named = isinstance(value, tuple) and hasattr(value, "_fields")
        return type(value)(*items) if named else type(value)(items)
    return value


def _cast_mapping(value: Mapping[Any, Any], dtype: torch.dtype) -> Any:
    items = {key: cast_nested(item, dtype) for key, item in value.items()}
    if type(value) is dict or not isinstance(value, MutableMapping):
        return items
    same = copy.copy(value)  # the constructor of a subclass may need other arguments than its items
    for key, item in items.items():
        same[key] = item
    return same
