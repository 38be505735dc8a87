"""torch's SGD, with one call for all parameters instead of several calls for each of them.

On a CPU, torch's SGD takes two or three calls into C++ for each parameter, and asks for the state
of each. A model of small layers spends more time on that than on the arithmetic. The same
operations on lists of tensors give the same bits. torch's `foreach=True` sorts the tensors by
device and format in each step, which takes as long as it saves on a CPU; `fused=True` rounds
differently. In a large model, arithmetic and memory take the time: there torch's own order is
faster, as it finishes one parameter while that is in the caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable


MOST = 1 << 17
"""Elements of all parameters beyond which a step is torch's own."""


class SGD(torch.optim.SGD):
    """`torch.optim.SGD`, bit for bit, and with the same state.

    The first step of a parameter with momentum, and every step of a large model or of anything but
    fp32 parameters on a CPU, are torch's own.
    """

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch's overloads say the same in two signatures
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Take one step.

        Args:
            closure: Evaluates the loss again and returns it.
        """
        found = None if closure is not None else self._tensors()
        if found is None:
            loss: float | None = super().step(closure)
            return loss
        for group, tensors in zip(self.param_groups, found, strict=True):
            if tensors[0]:
                _update(group, *tensors)
        return None

    def _tensors(self) -> list[tuple[list[Any], list[Any], list[Any]]] | None:
        """Return each group's parameters with a gradient, these, and their momentum.

        Returns:
            None where torch's own step is to be taken.
        """
        found, elements = [], 0
        for group in self.param_groups:
            if type(group["lr"]) is not float or group["maximize"] or group["foreach"]:
                return None
            if group["fused"] or group["differentiable"]:
                return None
            params, grads, buffers = [], [], []
            with_momentum, state = group["momentum"] != 0, self.state
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
            found.append((params, grads, buffers))
        return found


def _is_fp32_on_cpu(param: torch.Tensor) -> bool:
    return type(param) is nn.Parameter and param.dtype is torch.float32 and param.is_cpu


def _update(
    group: dict[str, Any],
    params: list[torch.Tensor],
    grads: list[torch.Tensor],
    buffers: list[torch.Tensor],
) -> None:
    """Update the parameters and the momentum of a group; the gradients stay as they are."""
    momentum, decay, update = group["momentum"], group["weight_decay"], grads
    if decay != 0:
        update = list(torch._foreach_add(update, params, alpha=decay))  # noqa: SLF001
    if momentum != 0:
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, update, alpha=1 - group["dampening"])
        if group["nesterov"]:
            update = list(torch._foreach_add(update, buffers, alpha=momentum))  # noqa: SLF001
        else:
            update = buffers
    torch._foreach_add_(params, update, alpha=-group["lr"])
