"""Thread-local settings, which must be entered again in every other thread.

In torch, autocast, function and dispatch modes, saved-tensor hooks and inference mode are local to
a thread; in Python, context variables are. A new thread starts without any of these settings.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import overrides
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.utils import _python_dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode


def function_modes() -> Callable[[], AbstractContextManager[None]]:
    """Return a function that creates contexts in which the current function modes are active."""
    return partial(_function_modes, overrides._get_current_function_mode_stack())  # noqa: SLF001


class ThreadState:
    """The settings of the thread that creates this object.

    Args:
        device_type: Type of the device whose autocast settings are recorded, besides the CPU's.
    """

    def __init__(self, device_type: str) -> None:
        self._contexts: list[Callable[[], AbstractContextManager[Any]]] = [
            _autocast_here(each) for each in dict.fromkeys(("cpu", device_type))
        ]
        if torch.is_inference_mode_enabled():
            self._contexts.append(torch.inference_mode)
        autograd = torch._C._autograd  # noqa: SLF001  (there is no public way to ask)
        ignore_is_tracing = False
        hooks = autograd._top_saved_tensors_default_hooks(ignore_is_tracing)  # noqa: SLF001
        if hooks is not None:  # those below the innermost pair have no effect
            self._contexts.append(partial(saved_tensors_hooks, *hooks))
        refused = autograd._saved_tensors_hooks_get_disabled_error_message()  # noqa: SLF001
        if refused is not None:
            self._contexts.append(partial(disable_saved_tensors_hooks, refused))
        self._contexts.append(function_modes())
        dispatched = _python_dispatch._get_current_dispatch_mode_stack()  # noqa: SLF001
        self._contexts += [partial(_dispatch_mode, mode) for mode in dispatched]

    def carried_by(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` wrapped to run with these settings; for one call in one thread."""
        return partial(copy_context().run, self._call, function)

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context())
            return function(*args, **kwargs)


def _autocast_here(device_type: str) -> Callable[[], AbstractContextManager[Any]]:
    return partial(
        torch.autocast,
        device_type,
        dtype=torch.get_autocast_dtype(device_type),
        enabled=torch.is_autocast_enabled(device_type),
        cache_enabled=torch.is_autocast_cache_enabled(),
    )


# The functions below put a mode on torch's stack without calling its `__enter__`. That method may
# do more work, which the calling thread has already done.


@contextmanager
def _function_modes(modes: Sequence[TorchFunctionMode]) -> Iterator[None]:
    for mode in modes:
        overrides._push_mode(mode)  # noqa: SLF001
    try:
        yield
    finally:
        for _ in modes:
            overrides._pop_mode()  # noqa: SLF001


@contextmanager
def _dispatch_mode(mode: TorchDispatchMode) -> Iterator[None]:
    _python_dispatch._push_mode(mode)  # noqa: SLF001
    try:
        yield
    finally:
        _python_dispatch._pop_mode()  # noqa: SLF001
