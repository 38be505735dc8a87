"""Copies to the host that nobody waits for until they are read.

A copy goes on while the device works; read at the start of the next step, it has long arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


class HostCopy:
    """A copy of a few numbers on its way to the host; none where they are there.

    Args:
        numbers: Scalars of one device, which nobody writes to any more.
    """

    def __init__(self, numbers: Sequence[torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        self._values: Sequence[torch.Tensor] | torch.Tensor = numbers
        if numbers[0].is_cuda:
            values = torch.stack(list(numbers))
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            # Of the tensors' GPU, which need not be the current one.
            self._event.record(torch.cuda.current_stream(values.device))

    def read(self) -> list[float]:
        """Wait for the copy and return it."""
        if self._event is not None:
            self._event.synchronize()
        return [value.item() for value in self._values]
