"""Detects loss scales in the loop's own code, among the factors of its losses.

The factor in each source line is followed separately. After an overflow, a loop lowers its loss
scale without a step in between. So a loss scale differs from a loss weight that a schedule lowers:
between two values of such a weight, the loop makes steps.
"""

from __future__ import annotations

from dataclasses import field
from math import isfinite, log2
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record import OwnScale
from halfstep.doctor.record.sites import Mark, site
from halfstep.doctor.signals.frozen import frozen
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.signals.watched import Watched

LINES = 64


@dataclass(slots=True)
class Line:
    """The observations of the factor in one source line.

    Attributes:
        first: The first value.
        last: The latest value.
        made: Number of iterations with a step before the latest value.
        rises: How often the factor increased.
        drops: How often the factor decreased without a step in between.
        dropped_at: Number of iterations with a step before the first decrease; -1 without one.
        raised_at: Numbers of iterations with a step, and of backward passes, before the latest
            increase.
        undone: Losses before it decreased without a step since an increase, some of them; not
            read before the end.
        loss: The latest loss.
        ratios: By which powers of 2 it changed; one kind of change each way for a loss scale.
    """

    first: float
    last: float
    made: int
    rises: int = 0
    drops: int = 0
    dropped_at: int = -1
    raised_at: tuple[int, int] = (-1, -1)
    undone: list[torch.Tensor] = field(default_factory=list)
    loss: Any = None
    ratios: set[float] = field(default_factory=set)


class OwnScales(Signal):
    """Follows the factors by which the loop multiplies losses."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[Mark | None, Line] = {}
        self._backwards = 0

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Count a backward pass."""
        del losses
        self._backwards += 1

    def take(self, mark: Mark | None, number: Any, loss: Any, *, inverse: bool = False) -> None:
        """Note that a loss was multiplied.

        Args:
            mark: The source line of the multiplication.
            number: The factor: a number, or a tensor of one element.
            loss: The loss.
            inverse: Whether `number` is a divisor instead of a factor.
        """
        value, made = _value(number), self.watched.grammar.made
        if value is None:
            return
        value = 1 / value if inverse else value
        known = self._lines.get(mark)
        if known is None:
            if len(self._lines) < LINES:
                self._lines[mark] = Line(value, value, made, loss=torch.as_tensor(loss).detach())
            return
        if value != known.last and min(value, known.last) > 0 and len(known.ratios) < LINES:
            known.ratios.add(round(log2(value / known.last), 2))
        if value > known.last:
            known.rises += 1
            known.raised_at = made, self._backwards
        elif value < known.last and made == known.made:
            known.drops += 1
            steps, passes = known.raised_at  # A line may multiply several times in a pass.
            if made == steps and passes < self._backwards and len(known.undone) < LINES:
                known.undone.append(known.loss)
            known.dropped_at = made if known.dropped_at < 0 else known.dropped_at
        known.last, known.made, known.loss = value, made, torch.as_tensor(loss).detach()

    @property
    def dropping(self) -> bool:
        """Whether a factor has decreased, and no step was made since its first decrease."""
        return any(each.drops and each.dropped_at == each.made for each in self._lines.values())

    def freeze(self) -> dict[str, Any]:
        """Return the factors that have decreased without a step in between."""
        made = self.watched.grammar.made
        found = (
            frozen(
                OwnScale,
                each,
                steps=made - each.dropped_at,
                ratios=len(each.ratios),
                undone=sum(bool(one.isfinite().all()) for one in each.undone),
                site=site(mark),
            )
            for mark, each in self._lines.items()
            if each.drops
        )
        return {"own_scales": tuple(found)}


def _value(number: Any) -> float | None:
    if isinstance(number, torch.Tensor):  # Reading it on an accelerator would wait.
        if number.numel() != 1 or number.device.type != "cpu" or number.requires_grad:
            return None
        number = number.item()
    if not isinstance(number, int | float) or not isfinite(number) or number <= 0:
        return None
    return float(number)
