"""Copies to the host that nobody waits for until they are read.

A copy goes on while the device works; read at the start of the next step, it has long arrived.
"""

from __future__ import annotations

import torch


class HostCopy:
    """A copy of a small tensor on its way to the host.

    Args:
        values: 1-d tensor on any device.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            # Of the tensor's GPU, which need not be the current one.
            self._event.record(torch.cuda.current_stream(values.device))
        else:
            self._values = values.clone()

    def read(self) -> list[float]:
        """Wait for the copy and return it."""
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._values.tolist()
        return values
