"""`small.cpp`: products of small half tensors on the CPU, computed without entering Python."""

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
    """Kernels on top of Python's (`registration.OnTop`); none where they cannot be had.

    Args:
        operators: Names of the products in ATen ("mm").
    """

    def __init__(self, operators: Iterable[str]) -> None:
        self._operators = tuple(operators)
        self._library: ctypes.CDLL | None = None
        self._choice = (False, False, False)

    def keep(self) -> None:
        """Keep the operators' kernels; compile the library first if needed."""
        self._library = _library()
        if self._library:
            for name in self._operators:
                self._library.keep(f"aten::{name}".encode())

    def put_in_place(self) -> None:
        """Register kernels for what was kept."""
        if self._library:
            self._library.choose(*self._choice)
            self._library.put_in_place()

    def give_back(self) -> None:
        """End the registration."""
        if self._library:
            self._library.give_back()
        self._library = None

    def choose(self, widened: Collection[torch.dtype], *, others: bool) -> None:
        """Say which products are computed here, now or once the kernels are registered.

        Args:
            widened: Half dtypes whose products are widened and rounded once.
            others: Whether any other dtype's products are not PyTorch's own.
        """
        self._choice = (torch.float16 in widened, torch.bfloat16 in widened, others)
        if self._library:
            self._library.choose(*self._choice)
