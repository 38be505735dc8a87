"""Memory that widened inputs are written to, again and again.

A fresh buffer of some megabytes costs more in page faults than the copy into it, a small one less
than to find a place for it here. What a kernel widens is read only until it returns, so each thread
keeps one buffer for each argument's place.
"""

from __future__ import annotations

import threading

import torch

SMALLEST_KEPT = 1 << 15
"""Elements (128 KiB) below which a buffer is made anew: the allocator has it at hand."""

LARGEST_KEPT = 1 << 24
"""Elements (64 MiB) beyond which a buffer is made anew, so that no large one is held."""


class Scratch(threading.local):
    """One thread's buffers, by place."""

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}

    def widen(self, value: torch.Tensor, place: int) -> torch.Tensor:
        """Return an fp32 copy of `value` that holds until the place is used again."""
        elements = value.numel()
        kept = SMALLEST_KEPT <= elements <= LARGEST_KEPT
        if not kept or value.device.type != "cpu":
            return value.float()
        buffer = self._buffers.get(place)
        if buffer is None or buffer.numel() < elements:
            with torch.inference_mode(False):  # noqa: FBT003  # torch 2.11 compiles no keyword here
                buffer = self._buffers[place] = torch.empty(elements)
        # The strides that `value.float()` would have: its own where it is dense.
        strides = torch.empty_like(value, device="meta").stride()
        return buffer.as_strided(value.shape, strides).copy_(value)

    def clear(self) -> None:
        """Let go of this thread's buffers."""
        self._buffers.clear()


scratch = Scratch()
