"""torch's SGD on large fp32 parameters: one pass over memory in C, instead of five.

On a CPU, torch's SGD makes a pass for weight decay, two for the momentum, one for Nesterov's and
one for the weights. A large model's tensors fit into no cache, so that the passes take a quarter of
a ResNet-18's step. The pass has torch's bits, and takes place inside `optimizer.step()`: after the
hooks that come before a step, and before those that come after it, which see what they always see.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.optim import SGD

from halfstep.kernels.native.fused import SGDSettings, can_step_sgd, step_sgd
from halfstep.kernels.rounding import LARGE
from halfstep.optim.sgd import MOST
from halfstep.optim.watched import has_dispatch_mode, is_replaced, torchs_step_of

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Iterator

    from torch.optim import Optimizer

_STEP = torchs_step_of(SGD)


@contextmanager
def large_in_one_pass(optimizer: Optimizer) -> Iterator[None]:
    """Let the steps inside update large parameters in one pass, where that has the same bits.

    Args:
        optimizer: Any optimizer; for others than torch's SGD, and for large parameters of its that
            `updates` leaves out, nothing changes.
    """
    # A compiled step would be compiled anew for each new hook.
    is_known = type(optimizer) is SGD and not is_replaced(optimizer, _STEP)
    if not is_known or not _has_large(optimizer):
        yield
        return
    updated: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) > 1 or kwargs:
            return  # a closure has yet to make the gradients
        if has_dispatch_mode():
            return  # it would not hear of the update
        found = list(updates(optimizer, torch.float32))
        for param, grad, momentum, settings in found:
            step_sgd(param, grad, momentum, settings)
            updated.append((param, grad))
        for param, *_ in found:
            param.grad = None  # the step passes it by

    def give_back(*_: Any) -> None:
        for param, grad in updated:
            param.grad = grad
        updated.clear()

    before = optimizer.register_step_pre_hook(update)
    after = optimizer.register_step_post_hook(give_back)
    hooks = cast("OrderedDict[int, Any]", optimizer._optimizer_step_post_hooks)  # noqa: SLF001
    hooks.move_to_end(after.id, last=False)  # which `register_step_post_hook` cannot
    try:
        yield
    finally:
        before.remove()
        after.remove()
        give_back()


def updates(
    optimizer: Optimizer, dtype: torch.dtype
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, SGDSettings]]:
    """Find what C can update as this SGD of torch's would.

    The first step makes the momentum buffers, so that nothing is found before it.

    Args:
        optimizer: torch's SGD.
        dtype: Format of the parameters and gradients that are asked for.

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


def _has_large(optimizer: Optimizer) -> bool:
    """Tell whether a parameter is large, in a model that `sgd.py` does not step."""
    sizes: list[int] = [p.numel() for group in optimizer.param_groups for p in group["params"]]
    return sum(sizes) > MOST and max(sizes) >= LARGE
