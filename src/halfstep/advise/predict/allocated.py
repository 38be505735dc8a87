"""Corrects the results of operators on fake tensors whose kernels allocate other storages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
# Their kernels store the loss of each element in the storage of the result, then reduce it there.
_LOSSES = ("mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy")


def as_allocated(func: Any, args: Sequence[Any], out: Any) -> Any:
    """Return an operator's results with the storages that its kernels allocate for them.

    Args:
        func: The overload of the operator.
        args: Its positional arguments: input, weight, bias and running mean for a norm; input and
            target for a loss.
        out: Its fake results.
    """
    name = func._schema.name.partition("::")[2]  # noqa: SLF001
    if name in _NORMS:
        return _with_wide_statistics(args, out)
    if name in _LOSSES and out.dim() == 0:
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return out.new_empty(shape.numel()).as_strided((), ())
    return out


def _with_wide_statistics(args: Sequence[Any], out: Any) -> Any:
    """Return a norm's results with the saved mean and deviation in the dtype of its parameters.

    The kernels do so for a half-precision input with fp32 parameters. The decomposition that fake
    tensors run returns the statistics in the input's dtype.
    """
    owned = next((each for each in args[1:4] if isinstance(each, torch.Tensor)), None)
    if owned is None or owned.dtype == out[0].dtype:
        return out
    return (out[0], *(each.to(owned.dtype) for each in out[1:3]), *out[3:])
