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

SMALLEST_KEPT = 1 << 18
"""Elements (1 MiB) below which a buffer is made anew: the allocator has it at hand."""

LARGEST_KEPT = 1 << 24
"""Elements (64 MiB) beyond which a buffer is made anew, so that no large one is held."""

_SMALLEST_COPY = 1 << 12
"""Elements (16 KiB) below which a backward widens anew in less time than a copy is found."""


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
            return buffer[:elements].view(value.shape).copy_(value)
        # The strides that `value.float()` would have: its own where it is dense.
        strides = torch.empty_like(value, device="meta").stride()
        return buffer.as_strided(value.shape, strides).copy_(value)

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
    with its copy, which takes as long as widening again.

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
        """Return a fresh fp32 copy that `take` will find; None where none is to be kept."""
        size = 4 * value.numel()
        if not 4 * _SMALLEST_COPY <= size <= self._most - self._bytes or value.device.type != "cpu":
            return None
        wide = value.float()
        key = id(value)
        with self._lock:
            before = self._drop(key)
            uses = before.uses if before and before.of() is value else 0
            died = ref(value, lambda _: self._drop(key))
            self._copies[key] = _Copy(died, value._version, value.data_ptr(), wide, uses + 1)
            self._bytes += size
        return wide

    def take(self, value: torch.Tensor) -> torch.Tensor | None:
        """Return what `widen` has kept for one of its uses; None where there is nothing."""
        with self._lock:
            copy = self._copies.get(id(value))
            if copy is None:
                return None
            as_kept = copy.of() is value and copy.version == value._version
            copy.uses -= 1
            if not copy.uses or not as_kept:
                self._drop(id(value))
            return copy.wide if as_kept and copy.place == value.data_ptr() else None

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
