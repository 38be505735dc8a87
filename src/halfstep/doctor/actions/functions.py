"""Hooks of functions of torch whose calls by the loop are recorded."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from halfstep.doctor.actions.hearing import Hearing
from halfstep.doctor.internals import repeatable
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tape.listener import Call
from halfstep.doctor.tape.tape import random_state
from halfstep.doctor.tensors.nesting import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator


class Functions(Signal):
    """Records the calls of compiled functions and of a user's autograd functions."""

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks."""
        yield Hook(torch.autograd.Function, "apply", self._applying)
        yield Hook(torch, "compile", self._compiling)

    def _recorded(self, function: Any, args: Any, kwargs: Any) -> Any:
        state, guard = random_state(), self.watched.guard
        with guard.inside():
            result = function(*args, **kwargs)
        with guard.own():
            call = Call(function, args, kwargs, state)
            self.watched[Hearing].record(call, tensors_in((args, kwargs)), tensors_in(result))
        return result

    def _applying(self, original: Any) -> Any:  # a class method, in Python or in C
        def apply(kind: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            function = None
            if not torch.compiler.is_compiling() and self.watched.is_in_loop():
                function = repeatable(kind)
            if function is None:
                return original.__get__(None, kind)(*args, **kwargs)
            return self._recorded(function, args, kwargs)

        return classmethod(apply)

    def _compiled(self, function: Any) -> Any:
        if isinstance(function, nn.Module) or not callable(function):
            return function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self.watched.is_in_loop():
                return function(*args, **kwargs)
            return self._recorded(function, args, kwargs)

        return call

    def _compiling(self, original: Any) -> Any:
        def compile_(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if args or kwargs.get("model") is not None:
                return self._compiled(result)
            return lambda function: self._compiled(result(function))  # used as a decorator

        return compile_
