"""The half matrix products of a step: their sizes, and their shares of all multiplications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.doctor.record import Product
from halfstep.doctor.record.sites import Mark, site
from halfstep.doctor.tensors.widen import HALVES

if TYPE_CHECKING:
    from halfstep.doctor.bundle.caller import Caller

KEPT = 16
# Positions of the left and the right factor among the arguments.
_FACTORS = {"aten.mm": 0, "aten.bmm": 0, "aten.addmm": 1, "aten.baddbmm": 1}


class Products:
    """Adds up products of equal size."""

    def __init__(self) -> None:
        self._count: dict[tuple[int, int, int], int] = {}
        self._first: dict[tuple[int, int, int], tuple[str, Mark | None]] = {}

    def take(self, op: str, args: tuple[Any, ...], caller: Caller) -> None:
        """Count an operator of the forward pass."""
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
        """Return the largest products, the largest first."""
        total = sum(self._count.values()) or 1
        ordered = sorted(self._count.items(), key=lambda each: -each[1])
        return tuple(
            Product(dims, self._first[dims][0], count / total, site(self._first[dims][1]))
            for dims, count in ordered[:KEPT]
        )
