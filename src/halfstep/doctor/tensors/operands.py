"""The inputs of an operator, and its result in float64."""

from __future__ import annotations

import math
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from halfstep.doctor.tensors.inexact import is_inexact
from halfstep.doctor.tensors.nesting import exchange, tensors_in

if TYPE_CHECKING:
    from collections.abc import Mapping


def floats(value: Any) -> list[torch.Tensor]:
    """Return the floating-point and complex tensors in a value."""
    return [each for each in tensors_in(value) if is_inexact(each)]


def scalars_of(args: Any, kwargs: Any) -> list[float]:
    """Return the Python numbers among arguments."""
    found: list[float] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, float) or (isinstance(leaf, int) and not isinstance(leaf, bool)):
            found.append(float(leaf))
        return leaf

    exchange((args, kwargs), note)
    return found


def exact(
    func: Any, args: Any, kwargs: Any, before: Mapping[int, torch.Tensor] = MappingProxyType({})
) -> float | None:
    """Run an operator in float64, and return the largest magnitude of its result.

    Args:
        func: The overload of the operator.
        args: Its arguments.
        kwargs: Its keyword arguments.
        before: The contents of tensors that it has overwritten, by `id`.

    Returns:
        The magnitude; None if it is not finite, or if the operator cannot run in float64.
    """

    def double(leaf: Any) -> Any:
        leaf = before.get(id(leaf), leaf)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.detach().to(torch.float64, copy=True)  # It may be overwritten.
        if isinstance(leaf, torch.Tensor) and leaf.is_complex():
            return leaf.detach().to(torch.complex128, copy=True)
        return torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf

    try:
        with torch.random.fork_rng():
            result = func(*tree_map(double, args), **tree_map(double, kwargs))
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    largest = [each.abs().max().item() for each in floats(result) if each.numel()]
    return max(largest) if largest and all(map(math.isfinite, largest)) else None


def dead_rows(values: list[torch.Tensor], args: Any) -> int:
    """Return the number of rows of the first tensor that contain only -inf.

    A row is along the dimension of a softmax, along the dimensions in which a second tensor
    broadcasts, as the maximum of each row does, and otherwise along the last dimension.
    """
    if not values or values[0].dim() == 0:
        return 0
    along = args[1] if len(args) > 1 and isinstance(args[1], int) else -1
    if not -values[0].dim() <= along < values[0].dim():
        along = -1
    dimensions = _broadcast(values[0], values[1]) if len(values) > 1 else ()
    return int((values[0] == -math.inf).all(dim=dimensions or (along,)).sum())


def _broadcast(tensor: torch.Tensor, other: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions of a tensor, from the last, in which another one broadcasts to it."""
    pairs = enumerate(zip_longest(tensor.shape[::-1], other.shape[::-1], fillvalue=1), 1)
    return tuple(-at for at, (size, its) in pairs if its == 1 < size)
