"""Tracks the memory in use during a step, from the storages that are alive."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BLOCK = 512
"""Block size to which CUDA's allocator rounds up, in bytes (CUDACachingAllocator.h)."""


def rounded(size: int) -> int:
    """Return the bytes that CUDA's allocator reserves for `size` bytes."""
    return -(-size // BLOCK) * BLOCK


@dataclass(slots=True)
class LiveStorages:
    """Counts the bytes of the storages that are alive.

    Attributes:
        now: Bytes of the storages seen so far that are still alive.
        peak: The maximum of `now`.
        exact: Whether to count exact sizes, not sizes rounded up as by CUDA's allocator.
    """

    exact: bool = False
    now: int = 0
    peak: int = 0
    _alive: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = field(default_factory=dict)

    def see(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count the storages of tensors that were not seen before."""
        for tensor in tensors:
            if tensor.layout != torch.strided:
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata  # noqa: SLF001  # identifies the storage
            if key in self._alive:
                continue
            size = storage.nbytes() if self.exact else rounded(storage.nbytes())
            self._alive[key] = (weakref.ref(storage, self._forget(key)), size)
            self.now += size
        self.peak = max(self.peak, self.now)

    def _forget(self, key: int) -> Callable[[object], None]:
        def forget(_: object) -> None:
            _, size = self._alive.pop(key)
            self.now -= size

        return forget

    def close(self) -> None:
        """Stop counting."""
        self._alive.clear()
