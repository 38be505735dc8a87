"""What the last steps were found to lose by a cause: they are taken again with and without it.

A part of the record of evidence.
"""

from __future__ import annotations

import math
from typing import ClassVar

from halfstep.lazy_dataclass import dataclass

SHARE = 0.05
"""The share of the improvement of the loss in these steps from which a loss of it counts."""
FLOOR = 1e-5
"""The least difference of two losses that counts, relative to the loss. Both are of fp32."""


@dataclass(frozen=True, slots=True)
class Variation:
    """A way to take steps; the default is the way of the program's optimizer, without rounding.

    Attributes:
        rounded: The format to which the weights are rounded in between ("fp16"); "" for none.
        every: Number of steps from one such rounding to the next.
        exact: Whether the optimizer keeps the weights in fp32, whatever their format.
        rate: The learning rate of the first group, and others in proportion; 0 for no other rates.
    """

    rounded: str = ""
    every: int = 1
    exact: bool = False
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """The losses of the last batches, in fp32, before and after some steps on them.

    Attributes:
        code: The cause.
        steps: Number of the steps.
        first: The mean loss before these steps.
        with_cause: The mean loss after the steps as they are.
        without: The mean loss after the steps without the cause.
        note: Why the steps could not be taken; "" if they were.
    """

    code: str
    steps: int = 0
    first: float = math.nan
    with_cause: float = math.nan
    without: float = math.nan
    note: str = ""

    @property
    def harms(self) -> bool | None:
        """Whether the steps lose a part of their effect by the cause; None if it is unknown."""
        if self.note or not math.isfinite(self.without):
            return None
        if not math.isfinite(self.with_cause):
            return True
        floor = FLOOR * abs(self.first)
        better = self.first - self.without
        if self.with_cause - self.without > max(SHARE * better, floor):
            return True
        return None if abs(better) <= floor / SHARE else False

    @property
    def cost(self) -> str:
        """The losses in a sentence."""
        return (
            f"{self.with_cause:#.4g} against {self.without:#.4g} after {self.steps} steps, taken "
            f"again from a loss of {self.first:#.4g}"
        )


@dataclass(frozen=True, slots=True)
class Trials:
    """The trials of all causes that were found and may do no harm."""

    signal: ClassVar[str] = "trials"
    found: tuple[Trial, ...] = ()
