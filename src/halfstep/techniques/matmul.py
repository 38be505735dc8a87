"""How fp32 matrix products and convolutions compute on a GPU: IEEE single or TF32.

The switches are the process's own, so they are claimed and counted: the newest claim still open
decides, and the last one to close restores what was there before the first.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, ClassVar

import torch

from halfstep.techniques.base import Technique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.recipe import Matmul


class MatmulPrecision(Technique):
    """Set the fp32 precision of cuBLAS and cuDNN for as long as the technique is open.

    Only the `fp32_precision` switches are touched: torch raises when they are mixed with the older
    `allow_tf32` ones.

    Args:
        precision: "ieee" or "tf32".
    """

    _lock: ClassVar = threading.Lock()
    _claims: ClassVar[list[MatmulPrecision]] = []
    _before: ClassVar[list[str]] = []

    def __init__(self, precision: Matmul) -> None:
        self.precision = precision

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Claim the switches."""
        del models, optimizers
        with self._lock:
            if not self._claims:
                self._before[:] = _read()
            elif self._claims[-1].precision != self.precision:
                warnings.warn(
                    f"fp32 matrix products of the whole process now compute as {self.precision}; "
                    f"an engine that is still open had set {self._claims[-1].precision}: close it "
                    "first if both are to run",
                    stacklevel=2,
                )
            self._claims.append(self)
            _write([self.precision] * len(_SWITCHES))

    def close(self) -> None:
        """Give the switches back to the newest claim still open, or to what was there before."""
        with self._lock:
            if self not in self._claims:
                return
            self._claims.remove(self)
            if self._claims:
                _write([self._claims[-1].precision] * len(_SWITCHES))
            else:
                _write(self._before)


_SWITCHES = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)  # type: ignore[attr-defined]  # torch's stubs lack conv and rnn


def _read() -> list[str]:
    return [switch.fp32_precision for switch in _SWITCHES]


def _write(precisions: list[str]) -> None:
    for switch, precision in zip(_SWITCHES, precisions, strict=True):
        switch.fp32_precision = precision
