"""O1: patches torch's functions, and the user's functions that were decorated or registered."""

# ruff: noqa: SLF001  (the underscored names are Apex's, and programs use them)

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.nn.modules import rnn

from halfstep.apex.amp._amp_state import _amp_state, say
from halfstep.apex.amp.function_casts import FunctionCasts
from halfstep.apex.amp.handle import AmpHandle, NoOpHandle
from halfstep.apex.amp.lists import functional_overrides, tensor_overrides, torch_overrides
from halfstep.errors import closest
from halfstep.kernels.cpu_half import cpu_half

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[Callable[..., Any], Any, Any], Any]

RNNS = tuple(
    f"{name}{kind}" for name in ("rnn_tanh", "rnn_relu", "gru", "lstm") for kind in ("", "_cell")
)
"""The functions of `_VF` that torch's RNN modules call."""

_registered: list[tuple[Any, str, str]] = []
"""The user's registered functions: module, name, and the name of the cast (`to_half`, ...)."""

_deciding: list[AmpHandle | NoOpHandle] = []
"""At most one handle, the latest: decorated functions cast if it is active."""


def init(
    enabled: bool = True,
    loss_scale: float | str = "dynamic",
    enable_caching: bool = True,
    verbose: bool = False,
    allow_banned: bool = False,
) -> AmpHandle | NoOpHandle:
    """Patch torch's functions, as `initialize` does under O1.

    Args:
        enabled: If False, nothing is patched.
        loss_scale: Not used; each loss has its own scale.
        enable_caching: Whether casts of parameters are cached until the end of `scale_loss`.
        verbose: Whether every cast is printed.
        allow_banned: Whether functions that O1 refuses are cast to fp32 instead.

    Returns:
        A handle, whose `_deactivate()` undoes the patches.
    """
    del loss_scale
    end_casts()
    if enabled:
        return start_casts(
            enable_caching=enable_caching, verbose=verbose, allow_banned=allow_banned
        )
    handle = NoOpHandle()
    _deciding[:] = [handle]
    return handle


def start_casts(
    *,
    cpu: bool = True,
    enable_caching: bool = True,
    verbose: bool = False,
    allow_banned: bool = False,
) -> AmpHandle:
    """Patch the functions and set the current handle; `cpu` tells whether CPU tensors are cast."""
    casts = FunctionCasts(cpu=cpu, caching=enable_caching, report=say if verbose else None)
    held = ExitStack()
    # In evaluation, torch's fast path of attention calls one kernel instead of the patched
    # functions, so half inputs would meet fp32 weights.
    held.callback(
        torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()
    )
    torch.backends.mha.set_fastpath_enabled(False)
    if cpu:
        held.enter_context(cpu_half())
    _patch_registered(casts)
    _patch_lists(casts)
    _patch_in_place(casts)
    _patch_rnns(casts)
    for name, message in functional_overrides.BANNED_FUNCS:
        casts.patch(functional, name, casts.to_float if allow_banned else casts.refusing(message))
    _amp_state.handle = AmpHandle(casts, held, enable_caching=enable_caching, verbose=verbose)
    _deciding[:] = [_amp_state.handle]
    return _amp_state.handle


def end_casts() -> None:
    """Undo the patches of the current handle, if there is one."""
    if hasattr(_amp_state, "handle"):
        _amp_state.handle._deactivate()
    _deciding.clear()


def half_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that its tensors are cast to half precision under O1."""
    return _decorated(fn, "to_half")


def float_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that its half-precision tensors are cast to fp32 under O1."""
    return _decorated(fn, "to_float")


def promote_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that its tensors are cast to their widest format under O1."""
    return _decorated(fn, "to_widest")


def register_half_function(module: Any, name: str) -> None:
    """Register a function, so that the next `initialize` patches it to cast to half precision.

    Args:
        module: The module or class through which programs call the function.
        name: The name of the function in `module`.

    Raises:
        ValueError: If there is no such function.
    """
    _register(module, name, "to_half")


def register_float_function(module: Any, name: str) -> None:
    """Register a function, so that the next `initialize` patches it to cast to fp32.

    The arguments and errors are those of `register_half_function`.
    """
    _register(module, name, "to_float")


def register_promote_function(module: Any, name: str) -> None:
    """Register a function, so that the next `initialize` patches it to cast to the widest format.

    The arguments and errors are those of `register_half_function`.
    """
    _register(module, name, "to_widest")


def _decorated(fn: Callable[..., Any], how: str) -> Callable[..., Any]:
    @functools.wraps(fn)
    def cast(*args: Any, **kwargs: Any) -> Any:
        handle = _deciding[0] if _deciding else None
        if not isinstance(handle, AmpHandle) or not handle.is_active():
            return fn(*args, **kwargs)
        return getattr(handle._casts, how)(fn, args, kwargs)

    return cast


def _register(module: Any, name: str, how: str) -> None:
    if not hasattr(module, name):
        raise ValueError(f"No function named {name} in module {module}{closest(name, dir(module))}")
    _registered.append((module, name, how))


def _patch_registered(casts: FunctionCasts) -> None:
    for module, name, how in _registered:
        casts.patch(module, name, getattr(casts, how))


def _is_registered(owner: Any, name: str) -> bool:
    return any(module is owner and own == name for module, own, _ in _registered)


def _patch_lists(casts: FunctionCasts) -> None:
    for owner, lists in (
        (functional, [functional_overrides]),
        (torch, [torch_overrides]),
        (torch.Tensor, [tensor_overrides, torch_overrides]),
    ):
        for names in lists:
            for call, listed in (
                (casts.to_half, (*names.FP16_FUNCS, *names.FP16_FUNCS_SINCE)),
                (casts.to_float, (*names.FP32_FUNCS, *names.FP32_FUNCS_SINCE)),
                (casts.to_widest, (*names.CASTS, *names.CASTS_SINCE)),
            ):
                for name in listed:
                    if not _is_registered(owner, name):
                        casts.patch(owner, name, call)
    for name in torch_overrides.SEQUENCE_CASTS:
        casts.patch(torch, name, casts.to_widest)


def _patch_in_place(casts: FunctionCasts) -> None:
    """Patch in-place functions.

    If the result would be fp32, half-precision tensors are refused. Otherwise the arguments are
    cast to the format of the tensor that is changed.
    """
    instead = "its result may not fit. Write x = x.{}(...), which is fp32, or x.float() before"
    for name in (*torch_overrides.FP32_FUNCS, *torch_overrides.FP32_FUNCS_SINCE):
        why = instead.format(name)
        casts.patch(
            torch,
            f"{name}_",
            casts.refusing(f"Cannot call in-place function {name}_ with fp16 arguments: {why}"),
        )
        casts.patch(
            torch.Tensor,
            f"{name}_",
            casts.refusing(
                f"Cannot call in-place method {name}_ on fp16 Tensors: {why}", first=True
            ),
        )
    for name in (
        *(*torch_overrides.FP16_FUNCS, *torch_overrides.FP16_FUNCS_SINCE),
        *(*torch_overrides.CASTS, *torch_overrides.CASTS_SINCE),
    ):
        casts.patch(torch.Tensor, f"{name}_", casts.to_first)


def _patch_rnns(casts: FunctionCasts) -> None:
    own = vars(rnn)["_VF"]
    through = _Through(own)
    for name in RNNS:
        casts.patch(through, name, casts.to_half)
    casts.replace(rnn, "_VF", through)
    casts.patch(rnn.RNNBase, "check_input", _check_input)


def _check_input(check: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Check an RNN's input except its format: input and weights are cast after this check."""
    module, value, *others = args
    return check(module, value.to(module.all_weights[0][0].dtype), *others, **kwargs)


class _Through:
    """Replaces `_VF` in torch's RNN modules, so that its functions are patched only for them."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
