"""Copies a checkpoint into CPU memory, so that the copy can be written while the run trains.

The copy takes as many bytes of CPU memory as the tensors. The memory is kept for the next copy.
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.train.store.checkpoint import Checkpoint

LEAST_BYTES = 4_000_000
"""Minimum bytes of tensors for a copy: writing fewer bytes in a thread does not make a run faster,
as measured by `benchmarks/checkpoints.py`."""


class Copies:
    """Copies checkpoints into CPU memory; each copy reuses the memory of the copy before."""

    def __init__(self) -> None:
        self._buffers: list[torch.UntypedStorage] = []

    def of(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Copy a checkpoint into memory that training does not use; overwrites the last copy.

        Returns:
            The copy; None if the tensors have fewer bytes than `LEAST_BYTES`, or if a tensor is not
            plain and dense.
        """
        rest = io.BytesIO()
        apart = _TensorsApart(rest)
        apart.dump(checkpoint)
        if not all(map(_is_plain, apart.tensors)):
            return None
        storages = {_place(tensor): tensor.untyped_storage() for tensor in apart.tensors}
        if sum(storage.nbytes() for storage in storages.values()) < LEAST_BYTES:
            return None
        copied = dict(zip(storages, self._copied(list(storages.values())), strict=True))
        tensors = [_like(tensor, copied[_place(tensor)]) for tensor in apart.tensors]
        rest.seek(0)
        return cast("Checkpoint", _TensorsPut(rest, tensors).load())

    def _copied(self, storages: Sequence[torch.UntypedStorage]) -> list[torch.UntypedStorage]:
        spare: dict[int, deque[torch.UntypedStorage]] = defaultdict(deque)
        for memory in self._buffers:
            spare[memory.nbytes()].append(memory)
        self._buffers = []
        for memory in storages:
            size = memory.nbytes()
            buffer = spare[size].popleft() if spare[size] else torch.UntypedStorage(size)
            self._buffers.append(buffer.copy_(memory))
        return self._buffers


class _TensorsApart(pickle.Pickler):
    """Pickles everything except tensors, which it collects in `tensors` and stores as indices."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self._known: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, torch.Tensor):
            return None
        if id(value) not in self._known:
            self._known[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self._known[id(value)]


class _TensorsPut(pickle.Unpickler):
    """Unpickles the output of `_TensorsApart`, with other tensors in place of the indices."""

    def __init__(self, file: io.BytesIO, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, position: int) -> torch.Tensor:
        return self._tensors[position]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a plain strided view: no subclass, attributes or lazy operations."""
    seen_otherwise = tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    is_own = type(tensor) is torch.Tensor and not vars(tensor)
    return is_own and tensor.layout is torch.strided and not seen_otherwise


def _place(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """Return a key that is equal for tensors that share memory, and unique for empty tensors."""
    storage = tensor.untyped_storage()
    return tensor.device, storage.data_ptr() or id(tensor), storage.nbytes()


def _like(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a tensor that is the same view, but of another storage."""
    view = torch.empty(0, dtype=tensor.dtype)
    view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    return view.requires_grad_(tensor.requires_grad)
