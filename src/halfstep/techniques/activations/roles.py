"""What the noise of a saved tensor does to the gradients that an operator computes with it."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.nn import functional

from halfstep.techniques.activations.store import is_parameter

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
    """Say what an operator does with a tensor that it has saved.

    Args:
        func: The operator.
        args: What it was called with.
        result: What it returned.
        operand: The saved tensor.

    Returns:
        How many elements of the gradient of `result` each element is multiplied with for the
        gradient of a parameter, and the relative noise of the gradient that is passed on, over the
        relative noise of the operand.
    """
    params = [each for each in args if isinstance(each, torch.Tensor) and is_parameter(each)]
    trained = any(each.requires_grad for each in params)
    over = _normalised_over(func, args, operand)
    if over is not None:  # what is passed on has it in a mean over `over` elements alone
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
    """Return the elements that a norm layer has one mean of; None for every other operator."""
    if func in _ROW_NORMS:
        return float(prod(args[1]))
    if func is functional.batch_norm:
        return operand.numel() / operand.size(1)
    if func in _CHANNEL_NORMS:
        return operand[0, 0].numel()
    return None
