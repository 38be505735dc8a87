"""Asynchronous copies of numbers from a GPU to the host.

The copy runs while the GPU computes, and arrives when the GPU has done all work before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.kernels.accelerators import copies_while_computing, recorded_event

if TYPE_CHECKING:
    from collections.abc import Sequence


class HostCopy:
    """An asynchronous copy of a few numbers from a GPU to the host; other numbers stay in place.

    Args:
        numbers: Scalar tensors on one device, or one tensor, shape (numbers,). They must not
            change any more.
    """

    def __init__(self, numbers: Sequence[torch.Tensor] | torch.Tensor) -> None:
        self._event: torch.Event | None = None
        self._values: Sequence[torch.Tensor] | torch.Tensor = numbers
        if copies_while_computing(numbers[0]):
            values = numbers if isinstance(numbers, torch.Tensor) else torch.stack(list(numbers))
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            # On the stream of the tensors' GPU, which may not be the current GPU.
            self._event = recorded_event(values.device)

    @property
    def has_arrived(self) -> bool:
        """Whether the numbers can be read without waiting."""
        return self._event is None or self._event.query()

    def read(self) -> list[float]:
        """Wait for the copy, and return the numbers."""
        if self._event is not None:
            self._event.synchronize()
        return [value.item() for value in self._values]
