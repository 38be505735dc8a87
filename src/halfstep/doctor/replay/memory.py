"""The memory of tensors while a step is traced: its identity, and whether it is filled yet.

Functions such as `torch.empty_like` allocate uninitialized memory; dropout, for example, writes its
mask there afterwards. The tracer must ignore the numbers in it. Memory counts as filled after an
operator overwrites all of it, or when an operator reads it, because then the program relies on it.
"""

from __future__ import annotations

from typing import Any

import torch

from halfstep.doctor.internals import (
    changes_inputs,
    is_functorch_tensor,
    only_fills_outputs,
    tensors_written,
)
from halfstep.doctor.tensors.unfilled import ALLOCATING

_ALLOCATES = frozenset(f"aten.{name}" for name in ALLOCATING)
_COPIES = frozenset({"aten._to_copy", "aten.clone"})
_OVERWRITES = frozenset(
    {
        "aten.bernoulli_",
        "aten.cauchy_",
        "aten.copy_",
        "aten.exponential_",
        "aten.fill_",
        "aten.geometric_",
        "aten.log_normal_",
        "aten.normal_",
        "aten.random_",
        "aten.uniform_",
        "aten.zero_",
    }
)


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key that is the same for tensors that share memory."""
    if tensor.layout is not torch.strided or is_functorch_tensor(tensor):
        return id(tensor)
    return int(tensor.untyped_storage().data_ptr()) or id(tensor)


def share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors over one memory have an element in common, unlike two columns."""
    if one.layout is not torch.strided or one.dtype != other.dtype:
        return True  # or it is not known
    last = [
        each.storage_offset()
        + sum((n - 1) * by for n, by in zip(each.shape, each.stride(), strict=True))
        for each in (one, other)
    ]
    covered = torch.zeros(max(last) + 1, dtype=torch.bool)
    covered.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(1)
    return bool(covered.as_strided(other.shape, other.stride(), other.storage_offset()).any())


def is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor covers its whole storage."""
    return tensor.layout is not torch.strided or bool(
        tensor.nbytes == tensor.untyped_storage().nbytes()
    )


class Unfilled:
    """Tracks the memory that is allocated but not filled yet."""

    def __init__(self) -> None:
        self._keys: set[int] = set()

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return storage_key(tensor) in self._keys

    def allocate(self, op: str, values: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
        """Record the output of an operator, if the operator does not fill it.

        Args:
            op: Name of the operator.
            values: The inputs of the operator, with their contents from before it ran.
            made: The tensors in the output.

        Returns:
            Whether the output is unfilled.
        """
        if op in _COPIES:
            unfilled = any(each in self for each in values)
        elif op.startswith("aten.resize_"):  # A resize keeps the elements that exist already.
            unfilled = any(
                new.numel() > old.numel() for new, old in zip(made, values, strict=False)
            )
        else:
            unfilled = op in _ALLOCATES
        if unfilled:
            self._keys.update(storage_key(each) for each in made if each.numel())
        return unfilled

    def read(
        self, func: Any, op: str, args: Any, kwargs: Any, inputs: list[torch.Tensor]
    ) -> list[bool]:
        """Return for each input whether an operator reads its numbers.

        Args:
            func: The operator.
            op: Name of the operator.
            args: The arguments of the operator.
            kwargs: The keyword arguments of the operator.
            inputs: The tensors in these arguments.
        """
        if op.endswith("_like") or op.startswith("aten.new_"):  # Only shape and format are read.
            return [False] * len(inputs)
        changed = {id(each) for each in tensors_written(func, args, kwargs)}
        for each in inputs:
            if id(each) not in changed:
                self._keys.discard(storage_key(each))
        overwrites = _overwrites(func, op)
        return [id(each) not in changed or not overwrites for each in inputs]

    def write(self, func: Any, op: str, output: torch.Tensor) -> bool:
        """Record the writes of an operator.

        Args:
            func: The operator.
            op: Name of the operator.
            output: The tensor that the operator made or changed.

        Returns:
            Whether all elements of the output are filled now.
        """
        fresh = not changes_inputs(func)
        if fresh or (_overwrites(func, op) and is_whole(output)):
            self._keys.discard(storage_key(output))
        return fresh or _overwrites(func, op) or output not in self


def _overwrites(func: Any, op: str) -> bool:
    return op in _OVERWRITES or only_fills_outputs(func)
