"""The precision of fp32 matrix products and convolutions: IEEE single precision or TF32.

The switches of torch apply to the whole process, so every open technique holds a claim on them. The
newest open claim determines the precision, and the last one to close restores the original
settings. A device without TF32 units rehearses TF32.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from halfstep.kernels.hardware import has_tf32
from halfstep.kernels.products import ON
from halfstep.mechanisms.matmul.tf32 import ieee_products, tf32_products
from halfstep.mechanisms.technique import Stage, Technique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer


class MatmulPrecision(Technique):
    """Sets the fp32 precision of products until the technique is closed.

    torch has two sets of switches, `fp32_precision` and the older `allow_tf32`. It raises an error
    if an older switch is read and disagrees with the newer one; `torch.backends.cudnn.flags()` and
    `torch.export` read them. So this technique sets both.

    Args:
        precision: "ieee" or "tf32".
    """

    stage = Stage.KERNELS

    def __init__(self, precision: Literal["ieee", "tf32"]) -> None:
        self._precision = precision
        self._release: weakref.finalize[Any, Any] | None = None

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Claim the switches."""
        del optimizers
        claim = object()
        held = ExitStack()
        held.callback(_give_back, claim)
        _claim(claim, self._precision)
        devices = dict.fromkeys(param.device for model in models for param in model.parameters())
        for device in devices:
            if device.type in ON and self._precision == "ieee":
                held.enter_context(ieee_products(device.type))
            elif device.type in ON and not has_tf32(device):
                held.enter_context(tf32_products(device.type))
        # The finalizer also releases the claim of an engine that was dropped without close().
        self._release = weakref.finalize(self, held.close)

    def close(self) -> None:
        """Release the claim: restore the newest open claim's precision or the original settings."""
        if self._release is not None:
            self._release()


_SWITCHES = (
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,  # type: ignore[attr-defined]  # torch's stubs lack conv and rnn
    torch.backends.cudnn.rnn,
    torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
)


@dataclass(frozen=True, slots=True)
class _State:
    """The settings of the switches.

    Attributes:
        older: `cudnn.allow_tf32` and the result of `torch.get_float32_matmul_precision`; None if
            they cannot be read, because the user's older and newer settings disagree.
        precisions: The `fp32_precision` of each of `_SWITCHES`.
    """

    older: tuple[bool, str] | None
    precisions: tuple[str, ...]


_lock = threading.RLock()
_claims: dict[object, str] = {}
_before: list[_State] = []


def _claim(claim: object, precision: str) -> None:
    with _lock:
        if not _claims:
            _before[:] = [_read()]
        elif (open_one := next(reversed(_claims.values()))) != precision:
            warnings.warn(
                f"fp32 matrix products of the whole process now compute as {precision}; an engine "
                f"that is still open had set {open_one}: close it first if both are to run",
                stacklevel=2,
            )
        _claims[claim] = precision
        _write(_computing_in(precision))


def _give_back(claim: object) -> None:
    with _lock:
        del _claims[claim]
        if _claims:
            _write(_computing_in(next(reversed(_claims.values()))))
        else:
            _write(_before.pop())


def _computing_in(precision: str) -> _State:
    older = (True, "high") if precision == "tf32" else (False, "highest")
    # The older switch also changes the products on a CPU. They stay IEEE, because a CPU rehearses
    # TF32.
    return _State(older if _before[0].older else None, (*[precision] * 3, "ieee"))


def _read() -> _State:
    try:
        older = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    except RuntimeError:
        older = None
    return _State(older, tuple(switch.fp32_precision for switch in _SWITCHES))


def _write(state: _State) -> None:
    if state.older is not None:
        torch.backends.cudnn.allow_tf32, matmul = state.older
        torch.set_float32_matmul_precision(matmul)
    # These come last, because setting the older switches resets them.
    for switch, precision in zip(_SWITCHES, state.precisions, strict=True):
        switch.fp32_precision = precision
