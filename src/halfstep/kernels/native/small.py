"""`small.cpp`: products of small half tensors on the CPU, computed without a call of Python."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from halfstep.kernels.native.compiled import load
from halfstep.kernels.native.half import HEADER

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Collection, Iterable

_SOURCE = Path(__file__).with_name("small.cpp")


@cache
def _library() -> ctypes.CDLL | None:
    return load(_SOURCE, HEADER, otherwise="small products are computed in Python")


class SmallProducts:
    """C++ kernels over the Python kernels (`registration.OnTop`).

    Without a compiler, the methods do nothing.

    Args:
        operators: ATen names of the products ("mm").
    """

    def __init__(self, operators: Iterable[str]) -> None:
        self._operators = tuple(operators)
        self._library: ctypes.CDLL | None = None
        self._choice = (False, False, False)

    def keep(self) -> None:
        """Store the present kernels of the operators; compile the library if necessary."""
        self._library = _library()
        if self._library:
            for name in self._operators:
                self._library.keep(f"aten::{name}".encode())

    def put_in_place(self) -> None:
        """Register the C++ kernels for the operators that `keep` has stored."""
        if self._library:
            self._library.choose(*self._choice)
            self._library.put_in_place()

    def give_back(self) -> None:
        """Remove the registration of the C++ kernels."""
        if self._library:
            self._library.give_back()
        self._library = None

    def choose(self, widened: Collection[torch.dtype], *, others: bool) -> None:
        """Select the products that the C++ kernels compute, now or as soon as they are registered.

        Args:
            widened: The half dtypes whose products are computed in fp32 and rounded once.
            others: Whether the products of any other dtype are not computed by PyTorch.
        """
        self._choice = (torch.float16 in widened, torch.bfloat16 in widened, others)
        if self._library:
            self._library.choose(*self._choice)
