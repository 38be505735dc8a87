"""Counted changes of the process: put in place by the first user, given back by the last.

The dispatcher is the process's own, so what is registered here holds in every thread. The kernels
of `cpu_half.py` and the policy of `cuda_policy.py` each live in one `Overrides`.
"""

from __future__ import annotations

import threading
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
    """A change of the process that is in place while anyone holds it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holders = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the change in place, for every thread of the process."""
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
    """Kernels in C++ that lie on top of Python's, for the same dispatch key."""

    def keep(self) -> None:
        """Keep the kernels that operators have, before Python's are registered."""

    def put_in_place(self) -> None:
        """Register kernels for those operators, after Python's are registered."""

    def give_back(self) -> None:
        """End the registration."""


class Overrides(Counted):
    """Kernels for one dispatch key, registered while anyone holds them.

    Args:
        dispatch_key: The key that they are registered for, and for no other.
        kernels: Returns the kernels by operator name ("mm.out"), called at the first registration.
            None lets an operator fall through to the next key.
        on_top: What else is registered on top of them.
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
        """Whether the kernels are in place."""
        return self._library is not None

    def _put_in_place(self) -> None:
        if self._on_top:
            self._on_top.keep()
        library = torch.library.Library("aten", "IMPL")  # given back by count
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
