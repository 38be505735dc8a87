"""Patches functions by name, so that they cast their tensor arguments.

The patched functions of modules and methods of classes cast in every thread, without a context,
until `restore` restores the originals. `torch.autocast` decides by operator, below autograd; here
the name that a program calls decides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from halfstep.formats.dtypes import HALVES

Function = Callable[..., Any]
_MISSING = object()


class FunctionCasts:
    """A set of patched functions, which share a cache of cast parameters.

    Args:
        half: The format that `to_half` casts to.
        cpu: Whether tensors on a CPU are cast as well.
        caching: Whether the cast of a parameter is cached, until `forget` is called or the value or
            `requires_grad` of the parameter changes.
        report: Called with a line of text for every cast.

    Attributes:
        active: Whether the patched functions cast; otherwise they behave like the originals.
        cache: Maps parameters to their casts.
    """

    def __init__(
        self,
        *,
        half: torch.dtype = torch.float16,
        cpu: bool = True,
        caching: bool = True,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.active = True
        self.cache: dict[torch.Tensor, torch.Tensor] = {}
        self._versions: dict[torch.Tensor, int] = {}
        self._half = half
        self._cpu = cpu
        self._caching = caching
        self._report = report
        self._replaced: list[tuple[Any, str, Any]] = []

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Disable casts inside the context, and restore the previous state on exit."""
        before, self.active = self.active, False
        try:
            yield
        finally:
            self.active = before

    def forget(self) -> None:
        """Clear the cache of cast parameters."""
        self.cache.clear()
        self._versions.clear()

    def restore(self) -> None:
        """Restore every replaced attribute, and clear the cache."""
        for owner, name, own in reversed(self._replaced):
            if own is _MISSING:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._replaced.clear()
        self.forget()

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of `owner`, until `restore` restores the old value."""
        self._replaced.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def patch(self, owner: Any, name: str, call: Callable[[Function, Any, Any], Any]) -> None:
        """Replace a function by one that runs `call(function, args, kwargs)` while active.

        A name that `owner` does not have is skipped, because versions of torch differ.
        """
        function = getattr(owner, name, None)
        if function is None:
            return

        @functools.wraps(function)
        def patched(*args: Any, **kwargs: Any) -> Any:
            # If `out` were cast, the result would go into the copy, not the caller's tensor.
            if not self.active or kwargs.get("out") is not None:
                return function(*args, **kwargs)
            return call(function, args, kwargs)

        self.replace(owner, name, patched)

    def to_half(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Call `function` with every floating-point tensor cast to the half format."""
        return self._call(function, args, kwargs, self._halved)

    def to_float(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Call `function` with half-precision tensors cast to fp32."""
        return self._call(function, args, kwargs, self._widened)

    def to_widest(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Call `function`; if any tensor is fp32, cast half-precision tensors to fp32."""
        dtypes = {tensor.dtype for tensor in self._castable((args, kwargs))}
        if torch.float32 in dtypes and len(dtypes) > 1:
            return self._call(function, args, kwargs, self._widened)
        return function(*args, **kwargs)

    def to_first(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Call `function` with tensors in the format of the first, which is changed in place."""
        wanted = args[0].dtype
        if wanted != torch.float32 and wanted not in HALVES:
            return function(*args, **kwargs)

        def cast(tensor: torch.Tensor, name: str) -> torch.Tensor:
            return self._to(tensor, wanted, name)

        return self._call(function, args, kwargs, cast)

    def refusing(self, message: str, *, first: bool = False) -> Callable[[Function, Any, Any], Any]:
        """Return a `call` for `patch` that raises NotImplementedError for half-precision tensors.

        Args:
            message: The message of the error.
            first: Whether only the first argument counts, as for an in-place method.
        """

        def refuse(function: Function, args: Any, kwargs: Any) -> Any:
            looked_at = args[:1] if first else (args, kwargs)
            if any(tensor.dtype in HALVES for tensor in self._castable(looked_at)):
                raise NotImplementedError(message)
            return function(*args, **kwargs)

        return refuse

    def _call(
        self,
        function: Function,
        args: Any,
        kwargs: Any,
        cast: Callable[[torch.Tensor, str], torch.Tensor],
    ) -> Any:
        name = getattr(function, "__name__", "")

        def nested(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return cast(value, name) if self._is_castable(value) else value
            if type(value) in (list, tuple):
                return type(value)(nested(item) for item in value)
            return value

        return function(*nested(args), **{key: nested(value) for key, value in kwargs.items()})

    def _is_castable(self, tensor: torch.Tensor) -> bool:
        return tensor.is_floating_point() and (self._cpu or tensor.device.type != "cpu")

    def _castable(self, value: Any) -> Iterator[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            if self._is_castable(value):
                yield value
        elif isinstance(value, (list, tuple, dict)):
            for item in value.values() if isinstance(value, dict) else value:
                yield from self._castable(item)

    def _to(self, tensor: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
        if self._report and tensor.dtype != dtype:
            direction = "Half->Float" if dtype == torch.float32 else "Float->Half"
            self._report(f"{direction} ({name})")
        return tensor.to(dtype)

    def _widened(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return self._to(tensor, torch.float32, name) if tensor.dtype in HALVES else tensor

    def _halved(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        kept = self._caching and isinstance(tensor, nn.Parameter) and not tensor.is_inference()
        if not kept or tensor.dtype == self._half:
            return self._to(tensor, self._half, name)
        cast = self.cache.get(tensor)
        if cast is None or not self._holds(tensor, cast):
            cast = self._to(tensor, self._half, name)
            self.cache[tensor], self._versions[tensor] = cast, tensor._version
        return cast

    def _holds(self, tensor: torch.Tensor, cast: torch.Tensor) -> bool:
        """Tell whether a cached cast is valid: current values, and differentiable if needed."""
        differentiable = cast.requires_grad == tensor.requires_grad or not torch.is_grad_enabled()
        return (
            differentiable
            and self._versions.get(tensor) == tensor._version
            and cast.is_inference() == torch.is_inference_mode_enabled()
            and cast.device == tensor.device
        )
