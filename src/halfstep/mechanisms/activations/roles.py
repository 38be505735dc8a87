"""How noise in a saved tensor propagates to the gradients that an operator computes with it."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.nn import functional

from halfstep.mechanisms.activations.store import is_parameter

_ROW_NORMS = {functional.layer_norm, torch.layer_norm, functional.rms_norm, torch.rms_norm}
_CHANNEL_NORMS = {functional.instance_norm, functional.group_norm, torch.group_norm}
_CONVOLUTIONS = {
    functional.conv1d, functional.conv2d, functional.conv3d,
    torch.conv1d, torch.conv2d, torch.conv3d,
}  # fmt: skip
_TRANSPOSED = {
    functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d,
}  # fmt: skip


def role_of(
    func: Any, args: tuple[Any, ...], result: torch.Tensor, operand: torch.Tensor
) -> tuple[float, float]:
    """Return how the backward of an operator uses a tensor that the operator has saved.

    Args:
        func: The operator.
        args: The positional arguments of the call.
        result: The result of the call.
        operand: The saved tensor.

    Returns:
        Two numbers. First, the number of elements of the gradient of `result` with which each
        element of `operand` is multiplied for the gradient of a parameter. Second, the relative
        noise of the gradient that goes to earlier layers, divided by the relative noise of
        `operand`.
    """
    params = [each for each in args if isinstance(each, torch.Tensor) and is_parameter(each)]
    trained = any(each.requires_grad for each in params)
    over = _normalised_over(func, args, operand)
    if over is not None:  # it affects the input's gradient only in a mean over `over` elements
        return float(trained), 2 / over
    weight = next((each for each in params if each.dim() > 1), None)
    if weight is None:
        return 0.0, 1.0
    if not trained:
        return 0.0, 0.0
    if func in _CONVOLUTIONS:
        return result.numel() / operand.numel() * (weight.numel() / weight.size(0)), 0.0
    if func in _TRANSPOSED:
        return weight.numel() / weight.size(0), 0.0
    return weight.numel() / operand.size(-1), 0.0


def _normalised_over(func: Any, args: tuple[Any, ...], operand: torch.Tensor) -> float | None:
    """Return the number of elements that share a mean in a norm layer; None for other operators."""
    if func in _ROW_NORMS:
        return float(prod(args[1]))
    if func is functional.batch_norm:
        return operand.numel() / operand.size(1)
    if func in _CHANNEL_NORMS:
        return operand[0, 0].numel()
    return None
