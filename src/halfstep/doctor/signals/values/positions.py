"""Finds whole numbers, such as positions and timesteps, that half precision makes equal.

fp16 represents every whole number up to 2048, and bf16 up to 256. Larger numbers may be rounded.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record import RoundedCount
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES
from halfstep.formats.positions import MOST, counts_twice, counts_up

if TYPE_CHECKING:
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

KEPT = 64
LOOKS = 4
COLUMNS, ROWS = 16, 32
"""The most columns of a table that are examined, and the fewest rows: short columns rise often."""
_PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum", "linear", "outer"}
_CASTS = {"half", "bfloat16", "to", "type", "type_as"}
MERGED = 0.9
RADIAN = 0.5
"""A sine is noise where the numbers that its format can represent are farther apart."""


class Positions(Signal):
    """Collects whole numbers that a half-precision format has rounded."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._found: dict[tuple[str, Mark | None], RoundedCount] = {}
        self._looks: Counter[tuple[str, Mark | None]] = Counter()

    def on_call(self, heard: Heard) -> None:
        """Examine the half-precision result of `arange`, of a cast, or of a product."""
        if not heard.halves or not isinstance(heard.result, torch.Tensor):
            return
        if heard.name in _PRODUCTS:
            self._multiplied(heard.given, heard.result)
        if heard.name == "arange":
            self.made(heard.result, "", calling_line())
        elif heard.name == "cumsum":
            dim = heard.call.kwargs.get("dim", heard.call.args[-1])
            self.counted(heard.call.args[0], dim, heard.result, "", calling_line())
        elif heard.name in _CASTS:
            self.cast(heard.call.args[0], heard.result, "", calling_line())

    def _multiplied(self, given: list[torch.Tensor], result: torch.Tensor) -> None:
        """Examine the factors that autocast has cast before a product."""
        mark = calling_line()
        for each in given:
            if each.dtype == torch.float32 and not each.requires_grad:
                self.cast(each, each.to(result.dtype), "", mark)

    def made(self, result: torch.Tensor, module: str, mark: Mark | None) -> None:
        """Examine ascending numbers that were created in a half-precision format."""
        if counts_twice(result):
            self._add(result, result.numel() - result.unique().numel(), module, mark)

    def counted(
        self, marks: torch.Tensor, dim: Any, result: torch.Tensor, module: str, mark: Mark | None
    ) -> None:
        """Examine running counts of marks, such as a mask, in a half-precision format."""
        if result.dtype not in HALVES or not isinstance(dim, int) or not 1 < marks.numel() <= MOST:
            return
        self._looks[module, mark] += 1
        if self._looks[module, mark] > LOOKS or len(self._looks) > KEPT:
            return
        exact = marks.detach().double()
        if not bool(((exact == 0) | (exact == 1)).all()):
            return
        changed = int((exact.cumsum(dim) != result.detach().double()).sum())
        if changed:
            self._add(result, changed, module, mark)

    def cast(
        self, source: torch.Tensor, result: torch.Tensor, module: str, mark: Mark | None
    ) -> None:
        """Examine numbers that were cast to a half-precision format."""
        if (
            result.dtype not in HALVES
            or source.dtype in HALVES
            or source.shape != result.shape
            or not 1 < source.numel() <= MOST
            or len(self._looks) >= KEPT
        ):
            return
        self._looks[module, mark] += 1
        if self._looks[module, mark] > LOOKS:  # Each check waits for the device.
            return
        exact = source.detach().double()
        if not counts_up(exact) and (source.is_floating_point() or _is_data(exact, result)):
            column = _counting_column(exact)
            if column is None:
                return
            exact, result = exact[:, column], result[:, column]
        changed = int((exact != result.detach().double()).sum())
        if changed:
            self._add(result, changed, module, mark)

    def angles(
        self, angles: torch.Tensor, dtype: torch.dtype, module: str, mark: Mark | None
    ) -> None:
        """Examine angles of a sine or cosine that were computed in a half-precision format."""
        values = angles.detach().double()
        apart = values.abs() * torch.finfo(dtype).eps
        # Whole numbers up to the first that a format cannot represent are exact.
        whole = (values == values.round()) & (apart <= 1)
        rounded = int(((apart > RADIAN) & ~whole).sum())
        if rounded:
            self._add(angles.to(dtype), rounded, module, mark, of_waves=True)

    def _add(
        self,
        result: torch.Tensor,
        changed: int,
        module: str,
        mark: Mark | None,
        *,
        of_waves: bool = False,
    ) -> None:
        if of_waves and (module, mark) in self._found:  # The whole numbers say more.
            return
        self._found[module, mark] = RoundedCount(
            format=format_name(result.dtype),
            largest=result.detach().abs().max().item(),
            count=result.numel(),
            distinct=result.unique().numel(),
            changed=changed,
            module=module,
            site=site(mark),
            of_waves=of_waves,
        )

    def freeze(self) -> dict[str, Any]:
        """Return the rounded numbers."""
        return {"rounded": tuple(self._found.values())}


def _counting_column(table: torch.Tensor) -> int | None:
    """Return the column of a table of features that counts up, such as one of times."""
    is_table = table.ndim == 2 and len(table) >= ROWS and table.shape[1] <= COLUMNS
    if not is_table:
        return None
    steps = table.diff(dim=0)
    counts = (steps == steps[0]).all(0) & (steps[0] > 0) & (table == table.round()).all(0)
    return int(counts.to(torch.uint8).argmax()) if bool(counts.any()) else None


def _is_data(exact: torch.Tensor, rounded: torch.Tensor) -> bool:
    """Return whether whole numbers are probably data, such as pixels, that rounding hardly harms.

    Timesteps are a vector with one number per sample.
    """
    return exact.squeeze().ndim > 1 and bool(
        rounded.unique().numel() >= MERGED * exact.unique().numel()
    )
