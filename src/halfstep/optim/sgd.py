"""A step of torch's SGD, with one call for all parameters instead of several calls for each.

On a CPU, torch's SGD makes two or three calls into C++ for each parameter, and looks up the state
of each parameter. A model of small layers spends more time on these, and on torch's wrapper around
a step for profilers and hooks, than on the arithmetic. The same operations on lists of tensors give
the same bits. torch's `foreach=True` sorts the tensors by device and format in each step, which on
a CPU takes as long as it saves; `fused=True` rounds differently. A large model spends its time on
arithmetic and memory. There torch's own order is faster, because it finishes one parameter while
that parameter is in the caches.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import SGD

from halfstep.optim.watched import has_hooks, is_listened_to, is_replaced, torchs_step_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

MOST = 1 << 17
"""If all parameters together have more elements, torch's own step is used."""
_STEP = torchs_step_of(SGD)


def step(optimizer: Optimizer) -> bool:
    """Take a step with the same bits as `optimizer.step()`, if this is faster and unobserved.

    Args:
        optimizer: Any optimizer with unscaled gradients. Only a `torch.optim.SGD` of fp32
            parameters on a CPU is stepped, and with momentum only after its first step.

    Returns:
        Whether the step was taken; if not, nothing has changed.
    """
    if type(optimizer) is not SGD or has_hooks(optimizer) or is_listened_to():
        return False
    if is_replaced(optimizer, _STEP):
        return False
    found = _tensors(optimizer)
    if found is None:
        return False
    optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001  # for its schedulers
    with torch.no_grad():
        for group, tensors in zip(optimizer.param_groups, found, strict=True):
            if tensors[0]:
                _update(group, *tensors)
    return True


def _tensors(optimizer: SGD) -> list[tuple[list[Any], list[Any], list[Any]]] | None:
    """Return, for each group, the parameters with a gradient, their gradients and their momenta.

    Returns:
        One tuple per group; the momenta are empty if the group has none. None if torch's own step
        must be taken.
    """
    found, elements, state = [], 0, optimizer.state
    for group in optimizer.param_groups:
        if not _is_plain(group):
            return None
        params, grads, buffers = [], [], []
        with_momentum = group["momentum"] != 0
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            elements += param.numel()
            if elements > MOST or grad.is_sparse or not _is_fp32_on_cpu(param):
                return None
            params.append(param)
            grads.append(grad)
            if with_momentum:
                buffer = state[param].get("momentum_buffer")
                if buffer is None:
                    return None
                buffers.append(buffer)
        if len(set(map(id, params))) < len(params):
            return None  # a repeated parameter: torch updates it twice, one update after the other
        found.append((params, grads, buffers))
    return found


def _is_plain(group: dict[str, Any]) -> bool:
    if group["maximize"] or group["foreach"] or group["fused"] or group["differentiable"]:
        return False
    # `_scalar` caches by object: for a tensor that was changed in place, it would return the
    # earlier value.
    return type(group["lr"]) is float and isinstance(group["momentum"], float | int)


def _is_fp32_on_cpu(param: torch.Tensor) -> bool:
    return type(param) is nn.Parameter and param.dtype is torch.float32 and param.is_cpu


def _update(
    group: dict[str, Any],
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    buffers: list[torch.Tensor],
) -> None:
    """Update the parameters and the momentum buffers of a group; the gradients do not change."""
    momentum, decay, update = group["momentum"], group["weight_decay"], grads
    if decay != 0:
        update = list(torch._foreach_add(update, params, alpha=decay))  # noqa: SLF001
    if momentum != 0:
        torch._foreach_mul_(buffers, _scalar(momentum))
        torch._foreach_add_(buffers, update, alpha=1 - group["dampening"])
        if group["nesterov"]:
            update = list(torch._foreach_add(update, buffers, alpha=momentum))  # noqa: SLF001
        else:
            update = buffers
    torch._foreach_add_(params, update, alpha=-group["lr"])


@lru_cache(maxsize=16)
def _scalar(number: float) -> torch.Tensor:
    """Return a factor as a cached tensor; from a float, torch would create one per parameter."""
    return torch.tensor(number, dtype=torch.float32)
