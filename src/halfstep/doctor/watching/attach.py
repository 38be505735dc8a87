"""Adds hooks to torch and to the engine, and removes them.

The methods of torch's own classes are wrapped, so the program itself need not change. Each wrapper
calls the original method with the program's arguments. While torch.compile traces a call, the
wrapper only calls the original.
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from halfstep.doctor.internals import fetchers, repeatable
from halfstep.doctor.record.sites import calling_line
from halfstep.doctor.watching.warning_lines import naming_program
from halfstep.step_observer import observe

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from halfstep.doctor.watching.engine import EngineObserver
    from halfstep.doctor.watching.receiver import Receiver


class Attachment:
    """Adds the wrappers in its constructor, and removes them in `remove`.

    While the watch rests, the wrappers of `nn.Module.__call__` and of its casts stay in place and
    only call the module: replacing `__call__` takes milliseconds, because Python updates every
    subclass.

    Args:
        receiver: Receives all events.
        observer: Receives the reports of an engine.
    """

    def __init__(self, receiver: Receiver, observer: EngineObserver) -> None:
        self._receiver, self._observer = receiver, observer
        self._undo: list[Callable[[], None]] = []
        self._rests = False
        self._undo_calls = [_replaced(nn.Module, "__call__", self._around_call)]
        for name in ("half", "bfloat16", "float", "to"):
            cast = self._method(receiver.on_cast)
            self._undo_calls.append(_replaced(nn.Module, name, cast))
        self.resume()

    def resume(self) -> None:
        """Add all hooks and wrappers, except those of calls and casts, which are in place."""
        self._rests = False
        self._replace(nn.Module, "zero_grad", self._method(self._receiver.clearing.on_zero))
        self._wrap_autograd()
        self._wrap_autograd_functions()
        self._wrap_hooks()
        self._wrap_scaler()
        self._wrap_optimizers()
        self._wrap_schedulers()
        self._wrap_compile()
        self._wrap_save()
        self._wrap_autocast()
        self._wrap_loading()
        self._wrap_graphs()
        self._wrap_warnings()
        self._undo.append(observe(self._observer))
        _watched_process(self._receiver)

    def rest(self) -> None:
        """Remove all wrappers except those of calls and casts, and any that other code wrapped."""
        self._rests = True
        _watched_process(None)
        while self._undo:
            self._undo.pop()()

    def remove(self) -> None:
        """Remove all wrappers, except those that other code has wrapped."""
        self.rest()
        for undo in self._undo_calls:
            undo()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._undo.append(_replaced(owner, name, make))

    def _around_call(self, original: Any) -> Any:
        # Each call of each submodule runs this wrapper, so attributes are looked up only once.
        receiver, guard, is_compiling = (
            self._receiver,
            self._receiver.guard,
            torch.compiler.is_compiling,
        )

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            # The first check: torch.compile recompiles if a value that was read before changes.
            if is_compiling() or self._rests or guard.is_inside:
                return original(module, *args, **kwargs)
            if not receiver.is_here():
                with receiver.elsewhere.call(module):
                    return original(module, *args, **kwargs)
            if receiver.is_outside():
                return receiver.on_module(original, module, args, kwargs)
            if not receiver.stack.on:
                return original(module, *args, **kwargs)
            receiver.stack.enter(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                receiver.stack.leave()

        return call

    def _method(self, told: Callable[..., Any]) -> Callable[[Any], Any]:
        receiver = self._receiver

        def make(original: Any) -> Any:
            def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling() or not receiver.is_here():
                    return original(owner, *args, **kwargs)
                return told(original, owner, args, kwargs)

            return call

        return make

    def _afterwards(self, told: Callable[[Any], None]) -> Callable[[Any], Any]:
        receiver = self._receiver

        def make(original: Any) -> Any:
            def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(owner, *args, **kwargs)
                if receiver.is_here():
                    told(owner)
                return result

            return call

        return make

    def _wrap_autograd(self) -> None:
        receiver = self._receiver

        def make(original: Any) -> Any:
            def backward(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling() or not receiver.is_here():
                    return original(*args, **kwargs)
                return receiver.on_backward(original, args, kwargs)

            return backward

        self._replace(torch.autograd, "backward", make)

    def _wrap_autograd_functions(self) -> None:
        receiver = self._receiver

        def make(original: Any) -> Any:  # a class method, in Python or in C
            def apply(kind: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
                function = None
                if not torch.compiler.is_compiling() and receiver.is_in_loop():
                    function = repeatable(kind)
                if function is None:
                    return original.__get__(None, kind)(*args, **kwargs)
                return receiver.on_function(function, args, kwargs)

            return classmethod(apply)

        self._replace(torch.autograd.Function, "apply", make)

    def _wrap_hooks(self) -> None:
        receiver = self._receiver

        def make(original: Any) -> Any:
            def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
                if receiver.is_in_loop() and tensor.is_leaf and tensor.requires_grad:
                    hook = receiver.hooks.watched(hook, tensor, calling_line())
                return original(tensor, hook)

            return register_hook

        self._replace(torch.Tensor, "register_hook", make)

    def _wrap_scaler(self) -> None:
        kind = torch.amp.GradScaler
        scaling = self._receiver.scaling
        self._replace(kind, "__init__", self._afterwards(scaling.on_new_scaler))
        self._replace(kind, "load_state_dict", self._afterwards(scaling.on_loaded_scaler))
        self._replace(kind, "get_scale", self._of_scaler("on_get_scale"))
        self._replace(kind, "scale", self._of_scaler("on_scale"))
        self._replace(kind, "unscale_", self._of_scaler("on_unscale"))
        self._replace(kind, "step", self._of_scaler("on_scaler_step"))
        self._replace(kind, "update", self._of_scaler("on_update"))

    def _of_scaler(self, told: str) -> Callable[[Any], Any]:
        receiver = self._receiver

        def make(original: Any) -> Any:
            def call(scaler: Any, *args: Any, **kwargs: Any) -> Any:
                if not (scaler.is_enabled() and receiver.is_here()):
                    return original(scaler, *args, **kwargs)
                return getattr(receiver.scaling, told)(original, scaler, args, kwargs)

            return call

        return make

    def _wrap_optimizers(self) -> None:
        receiver = self._receiver
        self._replace(Optimizer, "__init__", self._afterwards(receiver.on_made_optimizer))
        self._replace(Optimizer, "add_param_group", self._afterwards(receiver.on_changed_optimizer))
        self._replace(Optimizer, "load_state_dict", self._afterwards(receiver.on_loaded_optimizer))
        self._replace(Optimizer, "zero_grad", self._method(self._receiver.clearing.on_zero))

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
            return receiver.before_step(optimizer, args, kwargs) if receiver.is_here() else None

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            del args, kwargs
            if receiver.is_here():
                receiver.after_step(optimizer)

        self._undo.append(register_optimizer_step_pre_hook(before).remove)
        self._undo.append(register_optimizer_step_post_hook(after).remove)

    def _wrap_schedulers(self) -> None:
        for kind in {LRScheduler, ReduceLROnPlateau, *_all_subclasses(LRScheduler)}:
            if "step" in vars(kind):
                self._replace(kind, "step", self._method(self._receiver.on_schedule))

    def _wrap_compile(self) -> None:
        receiver = self._receiver

        def compiled(function: Any) -> Any:
            if isinstance(function, nn.Module) or not callable(function):
                return function

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_compiling() or not receiver.is_in_loop():
                    return function(*args, **kwargs)
                return receiver.on_function(function, args, kwargs)

            return call

        def make(original: Any) -> Any:
            def compile_(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if args or kwargs.get("model") is not None:
                    return compiled(result)
                return lambda function: compiled(result(function))  # used as a decorator

            return compile_

        self._replace(torch, "compile", make)

    def _wrap_save(self) -> None:
        receiver = self._receiver

        def make(original: Any) -> Any:
            def save(*args: Any, **kwargs: Any) -> Any:
                if not receiver.is_here():
                    return original(*args, **kwargs)
                return receiver.on_save(original, args, kwargs)

            return save

        self._replace(torch, "save", make)

    def _wrap_autocast(self) -> None:
        elsewhere = self._receiver.elsewhere

        def make(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if not torch.compiler.is_compiling():
                    elsewhere.note_autocast()
                return result

            return call

        def noted(original: Any) -> Any:
            def init(context: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
                original(context, device_type, *args, **kwargs)
                wanted = args[1] if len(args) > 1 else kwargs.get("enabled", True)
                self._receiver.is_autocast_off |= (
                    bool(wanted) and device_type == "cuda" and not torch.cuda.is_available()
                )

            return init

        self._replace(torch.autocast, "__init__", noted)
        self._replace(torch.autocast, "__enter__", make)
        self._replace(torch.autocast, "__exit__", make)

    def _wrap_loading(self) -> None:
        # Without workers, a data set calls torch a dozen times per sample, which need no record.
        receiver = self._receiver

        def make(original: Any) -> Any:
            def fetch(*args: Any, **kwargs: Any) -> Any:
                if not receiver.is_here():
                    return original(*args, **kwargs)
                muted = receiver.listener.mute()
                try:
                    return original(*args, **kwargs)
                finally:
                    receiver.listener.unmute(muted)

            return fetch

        for kind in fetchers():
            self._replace(kind, "fetch", make)

    def _wrap_graphs(self) -> None:
        # While a CUDA graph is captured, a read of a value is an error, and whatever doctor
        # computed would become a part of the graph.
        receiver = self._receiver
        resting: list[AbstractContextManager[Any]] = []

        def begins(original: Any) -> Any:
            def capture_begin(*args: Any, **kwargs: Any) -> Any:
                if receiver.is_here():
                    receiver.graphs += 1
                    resting.append(receiver.guard.own())
                    resting[-1].__enter__()
                return original(*args, **kwargs)

            return capture_begin

        def ends(original: Any) -> Any:
            def capture_end(*args: Any, **kwargs: Any) -> Any:
                try:
                    return original(*args, **kwargs)
                finally:
                    if resting:
                        resting.pop().__exit__(None, None, None)

            return capture_end

        self._replace(torch.cuda.CUDAGraph, "capture_begin", begins)
        self._replace(torch.cuda.CUDAGraph, "capture_end", ends)

    def _wrap_warnings(self) -> None:
        # Python looks this function up by its name for every warning.
        guard = self._receiver.guard
        self._replace(warnings, "_showwarnmsg", lambda show: naming_program(show, guard))


def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace an attribute by the result of `make`; return a function that restores it."""
    inherited = name not in vars(owner)
    original = getattr(owner, name) if inherited else vars(owner)[name]
    ours = make(original)
    if callable(ours):
        functools.update_wrapper(ours, original)
    setattr(owner, name, ours)

    def undo() -> None:
        if vars(owner).get(name) is not ours:
            return  # Other code has wrapped ours since: ours stays, and still calls the original.
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return undo


def _all_subclasses(kind: type[Any]) -> set[type[Any]]:
    return {each for child in kind.__subclasses__() for each in ({child} | _all_subclasses(child))}


_process: list[Receiver | None] = [None]


def _watched_process(receiver: Receiver | None) -> None:
    _process[0] = receiver


def _forget_in_child() -> None:
    if (receiver := _process[0]) is not None:
        receiver.forget_process()


if hasattr(os, "register_at_fork"):
    # Without this, a forked worker of a data loader would continue to listen to no purpose.
    os.register_at_fork(after_in_child=_forget_in_child)
