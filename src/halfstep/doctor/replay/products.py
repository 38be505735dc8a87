"""Half-precision matrix products of a step: sizes, and shares of all their multiplications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.doctor.record import Product
from halfstep.doctor.record.sites import Mark, site
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from halfstep.doctor.bundle.caller import Caller

KEPT = 16
# Index of the left factor among the arguments; the right factor is the next argument.
_FACTORS = {"aten.mm": 0, "aten.bmm": 0, "aten.addmm": 1, "aten.baddbmm": 1}


class Products:
    """Counts the multiplications of half-precision matrix products, by size."""

    def __init__(self) -> None:
        self._count: dict[tuple[int, int, int], int] = {}
        self._first: dict[tuple[int, int, int], tuple[str, Mark | None]] = {}

    def take(self, op: str, args: tuple[Any, ...], caller: Caller) -> None:
        """Count an operator of the forward pass, if it is a half-precision matrix product."""
        place = _FACTORS.get(op)
        if place is None:
            return
        left, right = args[place : place + 2]
        if left.dtype not in HALVES:
            return
        dims = left.shape[-2], left.shape[-1], right.shape[-1]
        self._count[dims] = self._count.get(dims, 0) + left.numel() * right.shape[-1]
        self._first.setdefault(dims, (caller.module, caller.user_line))

    def freeze(self) -> tuple[Product, ...]:
        """Return the sizes with the most multiplications, the largest first."""
        total = sum(self._count.values()) or 1
        ordered = sorted(self._count.items(), key=lambda each: -each[1])
        return tuple(
            Product(dims, self._first[dims][0], count / total, site(self._first[dims][1]))
            for dims, count in ordered[:KEPT]
        )
