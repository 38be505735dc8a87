"""Intercepts Python calls of the operators that compute in a format of their own.

The interception is above autograd, so that forward and backward have the same format.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves, tree_map

from halfstep.mechanisms.params.technique import cast_floating

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CASTS = frozenset(["to", "float", "half", "bfloat16", "double", "type", "type_as"])
"""Operators that change only the format of a tensor."""

MOVES = frozenset(
    [
        *("contiguous", "clone", "detach", "requires_grad", "register_hook", "backward"),
        *("__get__", "__set__", "size", "dim", "numel", "item", "copy", "getitem", "setitem"),
        *("view", "reshape", "flatten", "unflatten", "transpose", "permute", "expand", "squeeze"),
        *("unsqueeze", "chunk", "split", "unbind"),
    ]
)
"""Operators that move or read values, but do not compute new ones."""


class Intercepted(TorchFunctionMode):
    """Casts the inputs of the operators that have a format of their own.

    Under autocast, the result keeps the operator's format, as for autocast's own fp32 operators.
    Without autocast, other exceptions receive the result in this format. For any other operator,
    the result is cast to the widest format that the inputs had before the cast, because the
    operator may combine it with half parameters.
    """

    def __init__(self, operators: Mapping[str, torch.dtype], device_type: str) -> None:
        super().__init__()
        self._operators = operators
        self._device_type = device_type

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        name = operator_name(func)
        dtype = self._operators.get(name)
        if dtype is not None:
            return self._excepted(func, dtype, args, kwargs)
        if is_intercepted():  # an outer mode may have a format for this operator
            return func(*args, **kwargs)
        return _ordinary(func, name, args, kwargs)

    def _excepted(
        self,
        func: Callable[..., Any],
        dtype: torch.dtype,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        formats = [_format_outside(leaf) for leaf in _floating((args, kwargs))]
        under_autocast = torch.is_autocast_enabled(self._device_type)
        with torch.autocast(self._device_type, enabled=False):
            result = func(*cast_floating(args, dtype), **cast_floating(kwargs, dtype))
        if formats and not under_autocast:
            _remember(result, max(formats, key=lambda each: torch.finfo(each).bits))
        return result


def _ordinary(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an operator that is no exception; its inputs may be results of exceptions."""
    wide = [leaf for leaf in _floating((args, kwargs)) if _format_outside(leaf) != leaf.dtype]
    if not wide:
        return func(*args, **kwargs)
    if name in CASTS:
        result = func(*args, **kwargs)
        # A cast to the same format returns its input. A view of it has no `_format_outside`, so the
        # result keeps the format that the cast requests.
        return result.view_as(result) if any(result is leaf for leaf in wide) else result
    if name in MOVES:
        result = func(*args, **kwargs)
        _remember(result, _format_outside(wide[0]))
        return result
    if is_in_place(func, kwargs):
        return func(args[0], *narrowed(args[1:]), **narrowed(kwargs))
    return func(*narrowed(args), **narrowed(kwargs))


def is_intercepted() -> bool:
    """Tell whether an `Intercepted` mode is active around the caller."""
    return any(isinstance(mode, Intercepted) for mode in _get_current_function_mode_stack())


def _floating(tree: Any) -> list[torch.Tensor]:
    return [
        leaf
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]


def _remember(result: Any, outside: torch.dtype) -> None:
    """Mark the results of an exception with the format in which other operators receive them."""
    for leaf in _floating(result):
        if leaf.dtype != outside:
            leaf._format_outside = outside  # type: ignore[attr-defined]  # noqa: SLF001  # its own


def _format_outside(tensor: torch.Tensor) -> torch.dtype:
    found: torch.dtype = getattr(tensor, "_format_outside", tensor.dtype)
    return found


def narrowed(tree: Any) -> Any:
    """Cast the results of exceptions in `tree` to the format in which other operators get them."""
    return tree_map(
        lambda leaf: leaf.to(leaf._format_outside) if hasattr(leaf, "_format_outside") else leaf,  # noqa: SLF001
        tree,
    )


def is_in_place(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a call overwrites its first argument with the result."""
    name = getattr(func, "__name__", "")
    written = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
    return written or bool(kwargs.get("inplace", False))


def operator_name(function: Callable[..., Any]) -> str:
    """Return the standard name of a function: "matmul" for `@`, "add" for `+` and `add_`."""
    name = getattr(function, "__name__", "")
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        reflected = re.fullmatch(r"[ri](matmul|add|sub|mul|truediv|pow|floordiv|mod)", name)
        name = reflected[1] if reflected else name
        return {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}.get(name, name)
    return str(name).removesuffix("_")
