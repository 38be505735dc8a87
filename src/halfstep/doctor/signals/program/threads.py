"""Counts calls of models in other threads, in which the loop's autocast is not active."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.internals import current_node
from halfstep.doctor.record import ElsewhereCall
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tape.modules import unwrapped
from halfstep.doctor.tape.tape import autocast_state
from halfstep.formats import format_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from halfstep.doctor.signals.watched import Watched

    Autocast = tuple[tuple[str, torch.dtype], ...]


class Elsewhere(Signal):
    """Counts calls of models for training in threads other than the loop's."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._inside = threading.local()
        self._of_loop: Autocast = ()
        self._calls: dict[tuple[str, Autocast, Autocast], tuple[int, Mark | None]] = {}

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the methods that enter and leave autocast."""
        for name in ("__enter__", "__exit__"):
            yield Hook(torch.autocast, name, self._noting)

    def _noting(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not torch.compiler.is_compiling():
                self.note_autocast()
            return result

        return call

    def note_autocast(self) -> None:
        """Store the loop's autocast state, after a thread has entered or left autocast."""
        if threading.get_ident() == self._thread:
            self._of_loop = autocast_state()

    @contextmanager
    def call(self, module: nn.Module) -> Iterator[None]:
        """Count the call of a model inside the block, if it trains in another thread."""
        if (
            threading.get_ident() == self._thread
            or getattr(self._inside, "on", False)
            or not module.training
            or not torch.is_grad_enabled()
            or current_node() is not None  # Checkpointed blocks run again in a backward.
        ):
            yield
            return
        self._inside.on = True
        try:
            key = type(unwrapped(module)).__name__, autocast_state(), self._of_loop
            mark = calling_line()
            with self._lock:
                count, first = self._calls.get(key, (0, mark))
                self._calls[key] = count + 1, first
            yield
        finally:
            self._inside.on = False

    def freeze(self) -> dict[str, Any]:
        """Return the counted calls."""
        return {
            "elsewhere": tuple(
                ElsewhereCall(kind, _names(autocast), _names(of_loop), count, site(mark))
                for (kind, autocast, of_loop), (count, mark) in self._calls.items()
            )
        }


def _names(autocast: Autocast) -> str:
    return ",".join(format_name(dtype) for _, dtype in autocast)
