"""Finds reentrant checkpoints whose parameters get no gradients, as no input requires any.

Such a checkpoint runs its function without gradients, and runs it again in a backward only if one
of its inputs requires gradients.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.utils import checkpoint

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfstep.doctor.signals.watched import Watched

_LINES = 16
_DEPTH = 5
_CALLS = 16
_NAMES = 3


@dataclass(frozen=True, slots=True)
class BlindCheckpoint:
    """A line with reentrant checkpoints whose inputs require no gradients.

    Attributes:
        count: Number of calls.
        without: Names of trainable parameters of the function that never had a gradient.
        owned: Number of these parameters that an optimizer updates.
        site: The line.
    """

    count: int
    without: tuple[str, ...]
    owned: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class BlindCheckpoints:
    """All lines with such checkpoints."""

    signal: ClassVar[str] = "checkpoints"
    lines: tuple[BlindCheckpoint, ...] = ()


class Checkpoints(Signal):
    """Counts the calls, and keeps the names of the parameters."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._counts: dict[Mark | None, int] = {}
        self._parameters: dict[Mark | None, dict[int, nn.Parameter]] = {}

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the function that a reentrant checkpoint applies."""
        yield Hook(torch.autograd.Function, "apply", self._applying)

    def _applying(self, original: Any) -> Any:
        def apply(kind: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            if kind is checkpoint.CheckpointFunction and self._is_blind(args):
                with self.watched.guard.own():
                    self._note(args, calling_line())
            return original.__get__(None, kind)(*args, **kwargs)

        return classmethod(apply)

    def _is_blind(self, args: tuple[Any, ...]) -> bool:
        return (
            not torch.compiler.is_compiling()
            and self.watched.guard.is_here
            and torch.is_grad_enabled()
            and not any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)
        )

    def _note(self, args: tuple[Any, ...], mark: Mark | None) -> None:
        if mark not in self._counts and len(self._counts) >= _LINES:
            return
        self._counts[mark] = self._counts.get(mark, 0) + 1
        if self._counts[mark] <= _CALLS:  # A line may run several layers in turn.
            self._parameters.setdefault(mark, {}).update(
                (id(each), each)
                for module in _modules(args, _DEPTH)
                for each in module.parameters()
                if each.requires_grad
            )

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        registry = self.watched.registry
        names = {id(each): name for name, each in registry.names().items()}
        owned = {
            id(each)
            for optimizer in registry.optimizers.alive().values()
            for group in optimizer.param_groups
            for each in group["params"]
        }
        lines = []
        for mark, count in self._counts.items():
            without = [
                each
                for each in self._parameters[mark].values()
                if each.requires_grad and not registry.had_gradient(each)
            ]
            lines.append(
                BlindCheckpoint(
                    count,
                    tuple(names.get(id(each), "") for each in without[:_NAMES]),
                    sum(id(each) in owned for each in without),
                    site(mark),
                )
            )
        return {BlindCheckpoints.signal: BlindCheckpoints(tuple(lines))}


def _modules(function: Any, depth: int) -> Iterable[nn.Module]:
    """Yield the modules that a function is, is a method of, or refers to."""
    if isinstance(function, nn.Module):
        yield function
        return
    if depth == 0 or isinstance(function, torch.Tensor):
        return
    parts: list[Any] = [getattr(function, "__self__", None)]
    if isinstance(function, partial):
        parts += [function.func, *function.args, *function.keywords.values()]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:  # The variable is not assigned yet.
            continue
    if isinstance(function, list | tuple):
        parts += function
    for each in parts:
        if each is not None:
            yield from _modules(each, depth - 1)
