"""The directions in which a loop moves weights that it updates itself, without an optimizer.

At each gradient, the weights are compared with those at the gradient before: a step that goes along
the gradient before makes the loss larger. Nothing is read from a device before the program's end.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.movement.signs import functions_of
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.elements import some
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.signals.watched import Watched

_WEIGHTS, _ELEMENTS = 8, 64


@dataclass(frozen=True, slots=True)
class OwnDirections:
    """How a loop without an optimizer moves its weights.

    Attributes:
        steps: Number of steps that moved them.
        least: The smallest cosine between a step and the gradient before it; NaN if unknown.
        first: The loss of the first step; NaN if unknown.
        last: That of the last one.
        is_error: Whether the loss only adds up functions that are never negative, such as a squared
            error, so that it is one to be made smaller.
        site: The line that computes the gradients.
    """

    signal: ClassVar[str] = "own directions"
    steps: int = 0
    least: float = float("nan")
    first: float = float("nan")
    last: float = float("nan")
    is_error: bool = False
    site: Site | None = None


class Directions(Signal):
    """Compares the weights at successive gradients."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._held: tuple[torch.Tensor, torch.Tensor] | None = None
        self._steps: torch.Tensor | int = 0
        self._least: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []
        self._is_error: bool | None = None
        self._mark: Mark | None = None

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Find out from the first graph whether the loss is one to be made smaller."""
        self.judge(losses)

    def judge(self, losses: Sequence[torch.Tensor]) -> None:
        """Find out from the graph of losses whether they are to be made smaller."""
        if self._is_error is None:
            with suppress(RuntimeError):  # The graph may be freed.
                signs = [sign for each in losses for _, sign in functions_of(each.grad_fn)]
                self._is_error = bool(signs) and min(signs) > 0

    def take(
        self,
        weights: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        losses: Sequence[torch.Tensor],
    ) -> None:
        """Compare weights with those at the gradient before.

        Args:
            weights: The weights.
            gradients: The gradient of each.
            losses: Their loss, if it is known.
        """
        if not weights or any(each.layout is not torch.strided for each in (*weights, *gradients)):
            return
        stride = max(1, len(weights) // _WEIGHTS)
        parts = [
            torch.cat([some(each, _ELEMENTS).double() for each in tensors[::stride]])
            for tensors in (weights, gradients)
        ]
        if self._held is not None and self._held[0].shape == parts[0].shape:
            before, gradient = self._held
            update = parts[0] - before
            cosine = update @ gradient / (update.norm() * gradient.norm())  # NaN without a step
            self._steps = self._steps + update.any()
            self._least = cosine if self._least is None else torch.fmin(self._least, cosine)
        self._held, self._mark = (parts[0], parts[1]), calling_line()
        if losses:
            self._losses[1:] = [losses[0].detach().clone()]

    def freeze(self) -> dict[str, Any]:
        """Return the directions."""
        nan = float("nan")
        ends = [float(each) for each in self._losses] or [nan]
        found = OwnDirections(
            steps=int(self._steps),
            least=nan if self._least is None else float(self._least),
            first=ends[0],
            last=ends[-1],
            is_error=bool(self._is_error),
            site=site(self._mark),
        )
        return {OwnDirections.signal: found}
