"""Sites: the operators that each module of a model calls, named as in a recipe's exceptions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from halfstep import files as halfstep_files
from halfstep.mechanisms.exceptions.interception import CASTS, MOVES, operator_name
from halfstep.mechanisms.exceptions.technique import OPERATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

_PACKAGES = tuple(str(Path(file).parent) for file in (torch.__file__, halfstep_files.__file__))
# A cast or a move is not a site; it belongs to the operator that needs it.
_NOT_COMPUTED = CASTS | MOVES


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """An operator in one module; all calls of the operator by the module are one site.

    Attributes:
        module: Name of the innermost module that calls the operator; "" for the model itself.
        operator: Name of the operator, as in exceptions.
        is_whole_module: Whether the module has no submodules, so that the exception for the site is
            the module's name.
    """

    module: str
    operator: str
    is_whole_module: bool

    @property
    def pattern(self) -> str:
        """The pattern of an exception for this site."""
        if not self.module:
            return OPERATOR + self.operator
        return self.module if self.is_whole_module else f"{self.module}.{self.operator}"


@dataclass(frozen=True, slots=True)
class CallKey:
    """One call within a forward pass: its site, and its index among the site's calls, from 0."""

    site: Site
    index: int


class Listener(TorchFunctionMode):
    """Intercepts every operator call of a running model that computes with floating-point tensors.

    Args:
        model: The model, without any wrapper.
        hear: Called in place of the operator, with the key of the call, the operator, its
            positional and its keyword arguments; returns the result of the operator.

    Attributes:
        lines: The line of the model's code that calls each site, as "file:line", or
            "file:line, line" if several lines of the file do.
    """

    def __init__(
        self,
        model: nn.Module,
        hear: Callable[[CallKey, Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any],
    ) -> None:
        super().__init__()
        self._hear = hear
        self._leaves = {name: not any(True for _ in m.children()) for name, m in _named(model)}
        self._model = model
        self._path: list[str] = []
        self._counts: dict[Site, int] = {}
        self.lines: dict[Site, str] = {}
        self._placed: set[CallKey] = set()

    def __enter__(self) -> Self:
        self._counts.clear()
        self._handles = [
            handle
            for name, module in _named(self._model)
            for handle in (
                module.register_forward_pre_hook(self._entering(name)),
                module.register_forward_hook(self._leaving, always_call=True),
            )
        ]
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's own
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's own
        for handle in self._handles:
            handle.remove()
        self._path.clear()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Pass the call of an operator to `hear`."""
        del types
        kwargs = kwargs or {}
        name = operator_name(func)
        if not self._path or name in _NOT_COMPUTED or not _computes((args, kwargs)):
            return func(*args, **kwargs)
        site = Site(self._path[-1], name, self._leaves[self._path[-1]])
        index = self._counts.get(site, 0)
        self._counts[site] = index + 1
        key = CallKey(site, index)
        if key not in self._placed:
            self._placed.add(key)
            self._place(site, _calling_line())
        return self._hear(key, func, args, kwargs)

    def _place(self, site: Site, line: str) -> None:
        known = self.lines.setdefault(site, line)
        file, _, numbers = known.rpartition(":")
        place, _, number = line.rpartition(":")
        if place == file and number not in numbers.split(", "):
            self.lines[site] = f"{known}, {number}"

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._path.append(name)

        return enter

    def _leaving(self, *_: Any) -> None:
        if self._path:
            self._path.pop()


def _calling_line() -> str:
    """Return the innermost line of the model's code on the call stack; "" if there is none."""
    frame = sys._getframe(1)  # noqa: SLF001  # inspect.stack() reads the source of every frame
    outside = False
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGES):
            return f"{file}:{frame.f_lineno}"
        outside |= file.startswith(_PACKAGES[0])
        if outside and file.startswith(_PACKAGES[1]):
            return ""  # this frame runs the model; those around it are not its code
        frame = frame.f_back  # type: ignore[assignment]  # None at the outermost
    return ""


def _named(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(model.named_modules())


def _computes(given: Any) -> bool:
    return any(
        isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in tree_leaves(given)
    )
