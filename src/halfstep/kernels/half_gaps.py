"""Operators for which PyTorch has half kernels on CUDA, but not on a CPU.

On a CPU they use the fp32 kernels, and their results are rounded once. An operator without a half
kernel on CUDA is refused on a CPU too; the error says what to write instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.registration import Overrides
from halfstep.kernels.widen import is_half, narrowed

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from halfstep.kernels.registration import Kernel

_ON_CUDA_ALONE = (
    "avg_pool3d",
    "avg_pool3d_backward",
    "multi_margin_loss",
    "multi_margin_loss_backward",
    "multilabel_margin_loss_forward",
    "multilabel_margin_loss_backward",
    "rrelu_with_noise",
    "rrelu_with_noise_",
)
_NOWHERE = ("_ctc_loss", "_ctc_loss.Tensor")


def half_gaps_filled() -> AbstractContextManager[None]:
    """Return a context that registers these operators for half CPU tensors, in every thread."""
    return _overrides.held()


def _kernels() -> dict[str, Kernel | None]:
    kernels: dict[str, Kernel | None] = {name: _through_fp32(name) for name in _ON_CUDA_ALONE}
    return kernels | dict.fromkeys(_NOWHERE, _refuse_half)


def _through_fp32(name: str) -> Kernel:
    schema = getattr(torch.ops.aten, name).default._schema  # noqa: SLF001  # no public name
    written = [
        place
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]

    def kernel(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        dtype = next((arg.dtype for arg in args if is_half(arg)), None)
        if dtype is None:
            return original(*args, **kwargs)
        wide = [arg.float() if is_half(arg) else arg for arg in args]
        result = original(*wide, **kwargs)
        for place in written:
            args[place].copy_(wide[place])
        return args[0] if result is wide[0] else narrowed(result, dtype)

    return kernel


def _refuse_half(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if is_half(args[0]):
        raise RuntimeError(
            f"ctc_loss has no kernel for {args[0].dtype}, on a GPU neither; write "
            "ctc_loss(log_probs.float(), ...)"
        )
    return original(*args, **kwargs)


_overrides = Overrides("CPU", _kernels)
