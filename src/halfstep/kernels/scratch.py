"""Where half tensors are widened to: memory used again and again, and copies kept for the backward.

A fresh buffer of some megabytes costs more in page faults than the copy into it. What a kernel
widens is read only until it returns, so each thread keeps one buffer for each argument's place.
Factors that the backward multiplies once more are widened into memory of their own, which is kept
as long as the half tensor lives, until that backward has had it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from weakref import ref

import torch

from halfstep.kernels.native import half

_HALVES = (torch.float16, torch.bfloat16)

SMALLEST_KEPT = 1 << 18
"""Elements (1 MiB) below which a buffer is made anew: the allocator has it at hand."""

LARGEST_KEPT = 1 << 24
"""Elements (64 MiB) beyond which a buffer is made anew, so that no large one is held."""

_SMALLEST_COPY = 1 << 14
"""Elements (64 KiB) below which `small.cpp` may compute the backward, and takes no copy."""


def write_wide(value: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """Widen half numbers into an fp32 tensor of their strides, and return that."""
    if value.numel() < SMALLEST_KEPT or not half.widen(value, wide):
        wide.copy_(value)
    return wide


def widened(value: torch.Tensor) -> torch.Tensor:
    """Return what `value.float()` returns."""
    if value.numel() < SMALLEST_KEPT or value.dtype not in _HALVES or value.device.type != "cpu":
        return value.float()
    return write_wide(value, torch.empty_like(value, dtype=torch.float32))


class Scratch(threading.local):
    """One thread's buffers, by place."""

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}

    def widen(self, value: torch.Tensor, place: int) -> torch.Tensor:
        """Return an fp32 copy of `value` that holds until the place is used again."""
        elements = value.numel()
        if not SMALLEST_KEPT <= elements <= LARGEST_KEPT or value.device.type != "cpu":
            return value.float()
        buffer = self._buffers.get(place)
        if buffer is None or buffer.numel() < elements:
            with torch.inference_mode(False):  # noqa: FBT003  # torch 2.11 compiles no keyword here
                buffer = self._buffers[place] = torch.empty(elements)
        if value.is_contiguous():
            return write_wide(value, buffer[:elements].view(value.shape))
        # The strides that `value.float()` would have: its own where it is dense.
        strides = torch.empty_like(value, device="meta").stride()
        return write_wide(value, buffer.as_strided(value.shape, strides))

    def clear(self) -> None:
        """Let go of this thread's buffers."""
        self._buffers.clear()


@dataclass(slots=True)
class _Copy:
    """A widened tensor.

    Attributes:
        of: The half tensor; when that dies, its number may become another's.
        version: How often that had been written to.
        place: Of its first element, which changes when it is given other data.
        wide: The copy.
        uses: Backwards that are still to come.
    """

    of: ref[torch.Tensor]
    version: int
    place: int
    wide: torch.Tensor
    uses: int


class WideCopies:
    """Copies of half tensors from a forward kernel to its backward.

    A write through `.data` in between is not seen, as it counts in no version: the backward then
    uses the values of its forward. To see it, each backward would have to compare every element
    with its copy, which takes as long as widening again. A forward may come long after one without
    a backward, so it shares the copies of activations only, not those of parameters.

    Args:
        most: Bytes of all copies together, beyond which none is kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._copies: dict[int, _Copy] = {}
        self._bytes = 0
        # Re-entrant, as a tensor may die, and its copy with it, wherever memory is asked for.
        self._lock = threading.RLock()

    def widen(self, value: torch.Tensor) -> torch.Tensor | None:
        """Return an fp32 copy that `take` will find; None where none is to be kept."""
        with self._lock:
            copy = self._of(value)
            if copy is not None and not value.is_leaf:
                copy.uses += 1
                return copy.wide
            self._drop(id(value))
        uses = 1 if copy is None else copy.uses + 1
        size = 4 * value.numel()
        if not 4 * _SMALLEST_COPY <= size <= self._most - self._bytes or value.device.type != "cpu":
            return None
        wide = widened(value)
        key = id(value)
        died = ref(value, lambda _: self._drop(key))
        with self._lock:
            self._drop(key)  # another thread may have kept one meanwhile
            self._copies[key] = _Copy(died, value._version, value.data_ptr(), wide, uses)
            self._bytes += size
        return wide

    def take(self, value: torch.Tensor) -> torch.Tensor | None:
        """Return what `widen` has kept for one of its uses; None where there is nothing."""
        with self._lock:
            copy = self._of(value)
            if copy is None:
                return None
            copy.uses -= 1
            if copy.uses <= 0:
                self._drop(id(value))
            return copy.wide

    def _of(self, value: torch.Tensor) -> _Copy | None:
        """Return the copy of a half tensor, and let go of one that is not as the tensor is now."""
        copy = self._copies.get(id(value))
        if copy is None:
            return None
        if copy.of() is value and copy.version == value._version and copy.place == value.data_ptr():
            return copy
        self._drop(id(value))
        return None

    def clear(self) -> None:
        """Let go of all copies."""
        with self._lock:
            self._copies.clear()
            self._bytes = 0

    def _drop(self, key: int) -> _Copy | None:
        with self._lock:
            copy = self._copies.pop(key, None)
            if copy is not None:
                self._bytes -= 4 * copy.wide.numel()
            return copy


scratch = Scratch()
wide_copies = WideCopies(most=1 << 28)
"""Up to 256 MiB."""
