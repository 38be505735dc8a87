"""Memory for widened half tensors: buffers that are reused, and copies kept for the backward.

The page faults of a new buffer of some megabytes take more time than the copy into it. A kernel
needs its widened inputs only until it returns, so each thread keeps one buffer for each argument
position. If the backward needs a factor again, the factor is widened into memory of its own. This
copy is kept until the backward has used it, or until the half tensor is freed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from weakref import ref

import torch

from halfstep.formats.dtypes import HALVES
from halfstep.kernels.native import half

SMALLEST_KEPT = 1 << 18
"""Elements (1 MiB) below which buffers are not reused, because the allocator is fast enough."""

LARGEST_KEPT = 1 << 24
"""Elements (64 MiB) above which buffers are not reused, so that no large buffer is kept."""

_SMALLEST_COPY = 1 << 14
"""Elements (64 KiB) below which no copy is kept, because `small.cpp` may compute the backward."""


def write_wide(value: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """Widen a half tensor into `wide`, an fp32 tensor with the same strides, and return `wide`."""
    if value.numel() < SMALLEST_KEPT or not half.widen(value, wide):
        wide.copy_(value)
    return wide


def widened(value: torch.Tensor) -> torch.Tensor:
    """Return `value.float()`, computed faster for large half tensors on the CPU."""
    if value.numel() < SMALLEST_KEPT or value.dtype not in HALVES or value.device.type != "cpu":
        return value.float()
    return write_wide(value, torch.empty_like(value, dtype=torch.float32))


class Scratch(threading.local):
    """The buffers of one thread, by argument position."""

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}

    def widen(self, value: torch.Tensor, place: int) -> torch.Tensor:
        """Return an fp32 copy of `value` that is valid until the next call with this `place`."""
        elements = value.numel()
        if not SMALLEST_KEPT <= elements <= LARGEST_KEPT or value.device.type != "cpu":
            return value.float()
        buffer = self._buffers.get(place)
        if buffer is None or buffer.numel() < elements:
            with torch.inference_mode(False):  # noqa: FBT003  # torch 2.11 compiles no keyword here
                buffer = self._buffers[place] = torch.empty(elements)
        if value.is_contiguous():
            return write_wide(value, buffer[:elements].view(value.shape))
        # The strides that `value.float()` would have: those of `value` if it is dense.
        strides = torch.empty_like(value, device="meta").stride()
        return write_wide(value, buffer.as_strided(value.shape, strides))

    def clear(self) -> None:
        """Free the buffers of this thread."""
        self._buffers.clear()


@dataclass(slots=True)
class _Copy:
    """The fp32 copy of a half tensor.

    Attributes:
        of: The half tensor. After its end, another tensor may have the same `id`.
        version: The version counter of the half tensor at the time of the copy.
        place: Address of the half tensor's first element, which changes if its data are replaced.
        wide: The fp32 copy.
        uses: Number of backwards that have not used the copy yet.
    """

    of: ref[torch.Tensor]
    version: int
    place: int
    wide: torch.Tensor
    uses: int


class WideCopies:
    """fp32 copies of half tensors, which a forward kernel makes and its backward uses.

    A write through `.data` in between is not noticed, because it does not change the version
    counter: the backward then uses the values of its forward. To notice it, each backward would
    have to compare every element with its copy, which takes as long as widening again.

    A copy may be left over from a much earlier forward without a backward. So a forward reuses an
    existing copy of an activation, but widens a parameter again.

    Args:
        most: Limit on the bytes of all copies together; no copy is made beyond it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._copies: dict[int, _Copy] = {}
        self._bytes = 0
        # Re-entrant, because a tensor may be freed, and its copy dropped, at any allocation.
        self._lock = threading.RLock()

    def widen(self, value: torch.Tensor) -> torch.Tensor | None:
        """Return an fp32 copy of `value`, and keep it for `take`; None if no copy can be kept."""
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
            self._drop(key)  # another thread may have added a copy in the meantime
            self._copies[key] = _Copy(died, value._version, value.data_ptr(), wide, uses)
            self._bytes += size
        return wide

    def take(self, value: torch.Tensor) -> torch.Tensor | None:
        """Return the copy that `widen` has kept, and count one use; None if there is no copy."""
        with self._lock:
            copy = self._of(value)
            if copy is None:
                return None
            copy.uses -= 1
            if copy.uses <= 0:
                self._drop(id(value))
            return copy.wide

    def _of(self, value: torch.Tensor) -> _Copy | None:
        """Return the copy of a half tensor; drop it and return None if the tensor has changed."""
        copy = self._copies.get(id(value))
        if copy is None:
            return None
        if copy.of() is value and copy.version == value._version and copy.place == value.data_ptr():
            return copy
        self._drop(id(value))
        return None

    def clear(self) -> None:
        """Drop all copies."""
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
"""The copies of this process, at most 256 MiB."""
