"""Checks whether a program's checkpoints contain the state of an optimizer and of a scaler.

States are recognised by their structure, not by their names in the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record import Saved
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfstep.doctor.signals.watched import Watched

_OPTIMIZER, _SCALER = "optimizer", "scaler"
_GROWTH = {"_growth_tracker", "growth_tracker"}
_DEPTH = 8
_PARTS = 256
_LEAVES = (torch.Tensor, torch.nn.Module, str, bytes, int, float, bool, type(None), type)


class Saves(Signal):
    """Counts the calls of `torch.save`, by source line and by the states that were saved."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._saves: dict[tuple[Mark | None, bool, bool], int] = {}

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of `torch.save`."""
        yield Hook(torch, "save", self.watched.here(self._on_save))

    def _on_save(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        with self.watched.guard.own():
            self._take(args[0] if args else kwargs.get("obj"), calling_line())
        return original(*args, **kwargs)

    def _take(self, value: Any, mark: Mark | None) -> None:
        found = set(_states(value, _DEPTH))
        key = mark, _OPTIMIZER in found, _SCALER in found
        self._saves[key] = self._saves.get(key, 0) + 1

    def freeze(self) -> dict[str, Any]:
        """Return the saved checkpoints."""
        return {
            "saves": tuple(
                Saved(optimizer, scaler, count, site(mark))
                for (mark, optimizer, scaler), count in self._saves.items()
            )
        }


def _states(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, torch.optim.Optimizer):
        yield _OPTIMIZER
    elif isinstance(value, torch.amp.GradScaler):
        yield _SCALER
    elif isinstance(value, Mapping):
        if {"state", "param_groups"} <= value.keys():
            yield _OPTIMIZER
        elif "scale" in value and _GROWTH & value.keys():
            yield _SCALER
        else:
            yield from _inside(value.values(), depth)
    elif isinstance(value, list | tuple):
        yield from _inside(value, depth)
    elif not isinstance(value, _LEAVES) and hasattr(value, "__dict__"):
        yield from _inside(vars(value).values(), depth)


def _inside(parts: Iterable[Any], depth: int) -> Iterator[str]:
    if depth:
        for each in list(parts)[:_PARTS]:
            yield from _states(each, depth - 1)
