"""Whether somebody listens to the steps of an optimizer, or has put something in their place."""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

_OWN = "halfstep.engine.guard"
"""Whose hooks refuse steps past an engine, and look at nothing."""


def _untaken(optimizer: Optimizer) -> None:
    """Stand for a step of which `_AROUND` is made; nobody takes it."""


_AROUND = Optimizer.profile_hook_step(_untaken).__code__
"""What torch puts around the step of an optimizer: hooks, and a name for profilers."""


def has_hooks(optimizer: Optimizer) -> bool:
    """Tell whether hooks listen to the steps of an optimizer, the engine's own guards excepted."""
    if _global_optimizer_post_hooks or optimizer._optimizer_step_post_hooks:  # noqa: SLF001
        return True
    # There is no public way to ask for them.
    own = optimizer._optimizer_step_pre_hooks  # noqa: SLF001
    for hook in chain(_global_optimizer_pre_hooks.values(), own.values()):
        if getattr(hook, "__module__", None) != _OWN:
            return True
    return False


def is_listened_to() -> bool:
    """Tell whether somebody hears what is asked of torch: a profiler, or a mode."""
    return bool(
        torch._C._autograd._profiler_enabled()  # noqa: SLF001
        or has_dispatch_mode()
        or torch._C._len_torch_function_stack()  # noqa: SLF001
    )


def has_dispatch_mode() -> bool:
    """Tell whether a `TorchDispatchMode` hears each operator."""
    return bool(torch._C._len_torch_dispatch_stack())  # noqa: SLF001


def torchs_step_of(kind: type[Optimizer]) -> Callable[..., object] | None:
    """Return the step that torch wrote for a class of its own, without what torch puts around it.

    Returns:
        None if another function is already in its place.
    """
    files = {sys.modules[each.__module__].__file__ for each in (Optimizer, kind)}
    step = _step_of(kind)
    inner: Callable[..., object] | None = step
    while inner is not None:
        # `functools.wraps` copies the names of a function, but not its code.
        if not hasattr(inner, "__code__") or inner.__code__.co_filename not in files:
            return None
        inner = getattr(inner, "__wrapped__", None)
    return step


def is_replaced(optimizer: Optimizer, step: Callable[..., object] | None) -> bool:
    """Tell whether somebody has put something else in place of `optimizer.step`.

    Args:
        optimizer: An optimizer of a class of torch's.
        step: What `torchs_step_of` returned for the class.
    """
    of_instance = vars(optimizer).get("step")
    if of_instance is not None and not _is_of_scheduler(of_instance, type(optimizer).step):
        return True
    return step is None or _step_of(type(optimizer)) is not step


def _step_of(kind: type[Optimizer]) -> Callable[..., object]:
    step = kind.step
    return step.__wrapped__ if _is_around(step) else step  # type: ignore[attr-defined]


def _is_of_scheduler(step: object, wrapped: object) -> bool:
    """Tell whether this is a scheduler's wrapper, which only notes that there was a step.

    The mark alone does not tell: `functools.wraps` copies it to a wrapper of the wrapper, and a
    scheduler wraps a replaced step as well.
    """
    marked = hasattr(step, "_wrapped_by_lr_sched")
    return marked and getattr(step, "__wrapped__", None) is wrapped


def _is_around(step: Callable[..., object]) -> bool:
    return getattr(step, "__code__", None) is _AROUND
