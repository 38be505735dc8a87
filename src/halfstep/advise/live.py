"""Which memory is in use while a step runs, from the storages that are alive."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

BLOCK = 512
"""Bytes to which the CUDA allocator rounds up what is asked for (CUDACachingAllocator.h)."""


def rounded(size: int) -> int:
    """Return the bytes that the CUDA allocator hands out for `size`."""
    return -(-size // BLOCK) * BLOCK


@dataclass(slots=True)
class LiveStorages:
    """Bytes of the storages that are alive.

    Attributes:
        now: Of those seen so far that nothing has freed.
        peak: The most there was.
        exact: Whether sizes are the tensors' own, not rounded up as a GPU's allocator does.
    """

    exact: bool = False
    now: int = 0
    peak: int = 0
    _alive: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = field(default_factory=dict)

    def see(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count the storages of tensors that are new."""
        for tensor in tensors:
            if tensor.layout != torch.strided:
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata  # noqa: SLF001  # what tells two storages apart
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
