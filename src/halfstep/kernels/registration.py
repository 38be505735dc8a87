"""Counted changes of the process: the first user makes a change, and the last one undoes it.

The process has one dispatcher, so a registration applies to every thread.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

Kernel = Callable[..., Any]
"""Called as `kernel(original, *args, **kwargs)`; `original` runs the kernel that it replaces."""


class Counted:
    """A change of the process that lasts as long as at least one `held` context is open."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holders = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Return a context in which the change applies, to every thread of the process."""
        with self._lock:
            if self._holders == 0:
                self._put_in_place()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if self._holders == 0:
                    self._give_back()

    def _put_in_place(self) -> None:
        raise NotImplementedError

    def _give_back(self) -> None:
        raise NotImplementedError


class OnTop(Protocol):
    """C++ kernels that are registered over Python kernels, for the same dispatch key."""

    def keep(self) -> None:
        """Store the present kernels of the operators, before the Python kernels are registered."""

    def put_in_place(self) -> None:
        """Register the C++ kernels, after the Python kernels are registered."""

    def give_back(self) -> None:
        """Remove the registration of the C++ kernels."""


class Overrides(Counted):
    """Kernels for one dispatch key, registered as long as a `held` context is open.

    Args:
        dispatch_key: The only dispatch key for which the kernels are registered.
        kernels: Returns the kernels by operator name ("mm.out"); called at each registration. A
            kernel of None lets an operator fall through to the next key.
        on_top: C++ kernels to register over these kernels.
    """

    def __init__(
        self,
        dispatch_key: str,
        kernels: Callable[[], Mapping[str, Kernel | None]],
        on_top: OnTop | None = None,
    ) -> None:
        super().__init__()
        self._dispatch_key = dispatch_key
        self._kernels = kernels
        self._on_top = on_top
        self._library: torch.library.Library | None = None

    @property
    def registered(self) -> bool:
        """Whether the kernels are registered now."""
        return self._library is not None

    def _put_in_place(self) -> None:
        if self._on_top:
            self._on_top.keep()
        library = torch.library.Library("aten", "IMPL")  # `_give_back` destroys it
        with warnings.catch_warnings():  # torch 2.11 warns of an override, once for all operators
            warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
            for name, kernel in self._kernels().items():
                if kernel is None:
                    library.impl(name, torch.library.fallthrough_kernel, self._dispatch_key)
                    continue
                replacement = _replacing(f"aten::{name}", self._dispatch_key, kernel)
                library.impl(name, replacement, self._dispatch_key, with_keyset=True)
        if self._on_top:
            self._on_top.put_in_place()
        self._library = library

    def _give_back(self) -> None:
        assert self._library is not None
        if self._on_top:
            self._on_top.give_back()
        self._library._destroy()  # noqa: SLF001  # torch's own way to end a registration early
        self._library = None


def _replacing(name: str, dispatch_key: str, kernel: Kernel) -> Callable[..., Any]:
    handle = torch.library.get_kernel(name, dispatch_key)

    def replacement(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        return kernel(partial(handle.call_boxed, keyset), *args, **kwargs)

    return replacement
