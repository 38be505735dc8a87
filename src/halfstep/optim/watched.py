"""Checks whether hooks or profilers observe an optimizer's steps, or other code replaced `step`."""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

_OWN = ("halfstep.engine.guard", "halfstep.doctor.actions.steps")
"""The modules of hooks that do not change with the way in which an optimizer steps: those that
refuse steps outside an engine, and doctor's, to which the engine reports each step."""


def _untaken(optimizer: Optimizer) -> None:
    """Do nothing: a dummy step for `_AROUND`, which is never called."""


_AROUND = Optimizer.profile_hook_step(_untaken).__code__
"""The code of torch's wrapper around `step`, which calls hooks and names the step for profilers."""


def has_hooks(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer has step hooks other than halfstep's own."""
    # torch has no public API for an optimizer's hooks.
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks  # noqa: SLF001
    every = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks, before, after)
    hooks = chain.from_iterable(each.values() for each in every)
    return any(getattr(hook, "__module__", None) not in _OWN for hook in hooks)


def has_dispatch_mode() -> bool:
    """Tell whether a `TorchDispatchMode` is active, which receives every operator call."""
    return bool(torch._C._len_torch_dispatch_stack())  # noqa: SLF001


def torchs_step_of(kind: type[Optimizer]) -> Callable[..., object] | None:
    """Return the `step` function of a torch optimizer class, without torch's wrapper around it.

    Returns:
        None if the class's `step` was already replaced by other code.
    """
    files = {sys.modules[each.__module__].__file__ for each in (Optimizer, kind)}
    step = _step_of(kind)
    inner: Callable[..., object] | None = step
    while inner is not None:
        # `functools.wraps` copies the name of a function, but not its code. So the file of the code
        # shows whether a function is torch's.
        if not hasattr(inner, "__code__") or inner.__code__.co_filename not in files:
            return None
        inner = getattr(inner, "__wrapped__", None)
    return step


def is_replaced(optimizer: Optimizer, step: Callable[..., object] | None) -> bool:
    """Tell whether other code has replaced `optimizer.step`, on the object or on its class.

    Args:
        optimizer: An optimizer of a torch class.
        step: The result of `torchs_step_of` for the class.
    """
    of_instance = vars(optimizer).get("step")
    if of_instance is not None and not _is_of_scheduler(of_instance, type(optimizer).step):
        return True
    return step is None or _step_of(type(optimizer)) is not step


def _step_of(kind: type[Optimizer]) -> Callable[..., object]:
    step = kind.step
    return step.__wrapped__ if _is_around(step) else step  # type: ignore[attr-defined]


def _is_of_scheduler(step: object, wrapped: object) -> bool:
    """Tell whether `step` is the wrapper of a scheduler, which only records that a step was taken.

    The scheduler's mark on the wrapper is not enough: `functools.wraps` copies the mark to a
    wrapper around this wrapper, and a scheduler also wraps a `step` that was already replaced.
    """
    marked = hasattr(step, "_wrapped_by_lr_sched")
    return marked and getattr(step, "__wrapped__", None) is wrapped


def _is_around(step: Callable[..., object]) -> bool:
    return getattr(step, "__code__", None) is _AROUND
