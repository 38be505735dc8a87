"""Calls of a program's own autograd functions, kept while the last step runs again."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from halfstep.doctor.internals import is_of_torch
from halfstep.doctor.signals.signal import Hook, Signal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.watched import Watched

_MOST = 64


class OwnCall(NamedTuple):
    """A call of an autograd function: its class, and its arguments."""

    kind: type[torch.autograd.Function]
    args: tuple[Any, ...]


class OwnFunctions(Signal):
    """Keeps the calls inside of `kept`."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._calls: list[OwnCall] | None = None

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the call of an autograd function."""
        yield Hook(torch.autograd.Function, "apply", self._applying)

    def _applying(self, original: Any) -> Any:  # a class method, in Python or in C
        def apply(kind: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            calls = None if torch.compiler.is_compiling() else self._calls
            if calls is not None and not kwargs and len(calls) < _MOST and not is_of_torch(kind):
                calls.append(OwnCall(kind, args))
            return original.__get__(None, kind)(*args, **kwargs)

        return classmethod(apply)

    @contextmanager
    def kept(self) -> Iterator[list[OwnCall]]:
        """Keep the calls inside of the block, in the list that it is given."""
        calls: list[OwnCall] = []
        self._calls = calls
        try:
            yield calls
        finally:
            self._calls = None
