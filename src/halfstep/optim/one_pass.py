"""torch's SGD on large fp32 parameters: one pass over memory in C, instead of five.

On a CPU, torch's SGD makes a pass for the weight decay, two for the momentum, one for Nesterov
momentum and one for the weights. The tensors of a large model do not fit into a cache.

The single pass gives the same bits as torch. It runs inside `optimizer.step()`, after the user's
pre-hooks and before the post-hooks, so that all hooks see the same tensors as in a step of torch.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.optim import SGD

from halfstep.kernels.native.fused import SGDSettings, can_step_sgd, step_sgd
from halfstep.kernels.rounding import LARGE
from halfstep.optim.watched import has_dispatch_mode, is_replaced, torchs_step_of

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Iterator

    from torch.optim import Optimizer

_STEP = torchs_step_of(SGD)


def has_large(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer is torch's SGD and has a large fp32 parameter on the CPU."""
    return type(optimizer) is SGD and any(
        param.numel() >= LARGE and param.dtype == torch.float32 and param.device.type == "cpu"
        for group in optimizer.param_groups
        for param in group["params"]
    )


@contextmanager
def large_in_one_pass(optimizer: Optimizer) -> Iterator[None]:
    """Make the steps in this context update large parameters in one pass, with the same bits.

    Args:
        optimizer: Any optimizer. If it is not torch's SGD, nothing changes. The same holds for the
            parameters that `updates` does not yield.
    """
    # A step that `torch.compile` replaced is excluded: each new hook would compile it again.
    if not has_large(optimizer) or is_replaced(optimizer, _STEP):
        yield
        return
    updated: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) > 1 or kwargs:
            return  # the closure computes the gradients only inside the step
        if has_dispatch_mode():
            return  # the mode would not see the update
        found = list(updates(optimizer, torch.float32))
        for param, grad, momentum, settings in found:
            step_sgd(param, grad, momentum, settings)
            updated.append((param, grad))
        for param, *_ in found:
            param.grad = None  # torch's step skips parameters without a gradient

    def give_back(*_: Any) -> None:
        for param, grad in updated:
            param.grad = grad
        updated.clear()

    before = optimizer.register_step_pre_hook(update)
    after = optimizer.register_step_post_hook(give_back)
    hooks = cast("OrderedDict[int, Any]", optimizer._optimizer_step_post_hooks)  # noqa: SLF001
    hooks.move_to_end(after.id, last=False)  # `register_step_post_hook` has no option for this
    try:
        yield
    finally:
        before.remove()
        after.remove()
        give_back()


def updates(
    optimizer: Optimizer, dtype: torch.dtype
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, SGDSettings]]:
    """Find the parameters that the C code can update with the same bits as torch's SGD.

    With momentum, no parameter is found before the first step, which creates the momentum buffers.

    Args:
        optimizer: A `torch.optim.SGD`.
        dtype: Only parameters of this dtype are found.

    Yields:
        A large parameter, its gradient, its momentum buffer or None, and the settings.
    """
    for group in optimizer.param_groups:
        if any(group[name] for name in ("maximize", "foreach", "differentiable", "fused")):
            continue
        numbers = {name: group[name] for name in ("lr", "momentum", "dampening", "weight_decay")}
        if not all(isinstance(number, int | float) for number in numbers.values()):
            continue
        settings = SGDSettings(**numbers, nesterov=group["nesterov"])
        for param in group["params"]:
            grad = param.grad
            if param.numel() < LARGE or param.dtype != dtype or grad is None:
                continue
            momentum = optimizer.state.get(param, {}).get("momentum_buffer")
            if bool(settings.momentum) == (momentum is not None) and can_step_sgd(
                param, grad, momentum
            ):
                yield param, grad, momentum, settings
