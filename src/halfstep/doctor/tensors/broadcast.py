"""Finds outputs and targets, or their weights, that broadcast against each other in a loss."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor.internals import is_functorch_tensor
from halfstep.doctor.record import Broadcast

_SUBTRACTIONS = {
    *(torch.sub, torch.subtract, torch.rsub),
    *(torch.Tensor.sub, torch.Tensor.subtract, torch.Tensor.__sub__, torch.Tensor.__rsub__),
}
_PRODUCTS = {
    *(torch.mul, torch.multiply, torch.div, torch.divide, torch.true_divide),
    *(torch.Tensor.mul, torch.Tensor.multiply, torch.Tensor.__mul__, torch.Tensor.__rmul__),
    *(torch.Tensor.div, torch.Tensor.divide, torch.Tensor.__truediv__),
}
_LOSSES = {
    *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
    functional.poisson_nll_loss,
}
_LOSS_MODULES = {nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss}

_FEWEST, _MOST = 4, 256
"""Samples: with fewer, any rows are alike; of more, the first ones are examined."""
_EXACT = 1e-4


def broadcast_of(function: Any, given: list[torch.Tensor]) -> Broadcast | None:
    """Return the shapes of outputs and targets that broadcast although they have as many elements.

    So do targets that have broadcast before, of which there is one for each pair of samples. A
    parameter is no output: its difference to an input of the batch is usually one of all pairs.

    Args:
        function: The called function or module.
        given: The tensors in its arguments.
    """
    is_module = isinstance(function, nn.Module)
    is_operator = not is_module and (function in _SUBTRACTIONS or function in _PRODUCTS)
    is_loss = type(function) in _LOSS_MODULES if is_module else function in _LOSSES
    if not (is_operator or is_loss) or not _are_output_and_targets(given):
        return None
    if function in _PRODUCTS and given[0].numel() != given[1].numel():
        return None  # Factors of pairs are often meant.
    if is_operator and any(map(_has_gained_a_dimension, given)):
        return None
    at = int(given[0].requires_grad)
    outputs, targets = given[1 - at], given[at]
    try:
        together = tuple(torch.broadcast_shapes(outputs.shape, targets.shape))
    except RuntimeError:  # as of the loss itself
        return None
    if math.prod(together) == outputs.numel() or _are_equal(targets):
        return None
    return Broadcast(tuple(outputs.shape), tuple(targets.shape), together, at)


def _are_output_and_targets(given: list[torch.Tensor]) -> bool:
    """Return whether tensors are an output and targets of other shapes that may broadcast.

    They have as many elements, or the targets have broadcast before.
    """
    if len(given) != 2 or not torch.is_grad_enabled() or not all(map(_is_plain, given)):
        return False
    one, other = sorted(given, key=torch.Tensor.numel)
    outputs = [each for each in given if each.requires_grad]
    if len(outputs) != 1 or outputs[0].grad_fn is None:
        return False
    if one.numel() == other.numel():
        return one.ndim != other.ndim
    return one.requires_grad and _are_of_pairs(one, other)


def _are_of_pairs(outputs: torch.Tensor, targets: torch.Tensor) -> bool:
    """Return whether there is one output for each sample, and a target for each pair of them.

    Such targets are sums or products of tensors of shape (N, 1) and (N,): the rows differ, and
    all of them are multiples of one row, up to a number of their own. Not known on an accelerator.
    """
    count = outputs.numel()
    if tuple(targets.shape) != (count, count) or tuple(outputs.shape) not in {(count,), (count, 1)}:
        return False
    if count < _FEWEST or not targets.is_floating_point() or targets.device.type != "cpu":
        return False
    values = targets[:_MOST, :_MOST].double()
    both = [values - values.mean(dim, keepdim=True) for dim in (0, 1)]
    least = _EXACT * values.abs().max()
    if not all(bool(each.abs().max() > least) for each in both):
        return False
    return any(_is_of_one_row(each) for each in (both[0].T, both[1]))


def _is_of_one_row(values: torch.Tensor) -> bool:
    """Return whether all rows are multiples of one of them."""
    row = values[values.norm(dim=1).argmax()]
    rest = values - torch.outer(values @ row, row) / row.dot(row)
    return bool(rest.abs().max() <= _EXACT * values.abs().max())


def _is_plain(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) is torch.Tensor and not is_functorch_tensor(tensor)
    return is_plain and tensor.layout is torch.strided and not tensor.is_nested


def _are_equal(targets: torch.Tensor) -> bool:
    """Return whether all targets are equal, as in a GAN; not known on an accelerator."""
    return targets.device.type == "cpu" and bool((targets == targets.flatten()[0]).all())


def _has_gained_a_dimension(tensor: torch.Tensor) -> bool:
    """Return whether a tensor was given another dimension, as in x[:, None], to be broadcast."""
    made = tensor.grad_fn
    if type(made).__name__.startswith("Unsqueeze"):
        return True
    if len(getattr(made, "_saved_self_sym_sizes", tensor.shape)) < tensor.ndim:
        return True
    base = tensor._base  # noqa: SLF001
    return base is not None and base.ndim < tensor.ndim
