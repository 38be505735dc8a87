"""Casts of what goes into a model and comes out of it, however it is nested.

Containers keep their type; what is neither a tensor nor a container nor has a `.to` of its own is
handed on as it is.
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
        value: A tensor, lists, tuples, named tuples, sets and mappings of such, or a batch of the
            caller's own class with a method `to(dtype)`, which is called.
        dtype: What floating-point tensors become; others stay as they are.

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
    same = copy.copy(value)  # a class of its own may need more than its items to be made
    for key, item in items.items():
        same[key] = item
    return same
