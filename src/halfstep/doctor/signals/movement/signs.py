"""The sign with which a loss function enters the loss of a backward pass.

The graph is followed from the loss through sums, means and products with numbers to functions that
are never negative, such as a squared error, and to logarithms of probabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.signals.watched import Watched

_GRAPHS = 3  # of each line
_LINES = 16
_DEPTH = 24
_NEVER_NEGATIVE = {
    "NllLossBackward0": "cross_entropy",
    "NllLoss2DBackward0": "cross_entropy",
    "MseLossBackward0": "mse_loss",
    "SmoothL1LossBackward0": "smooth_l1_loss",
    "HuberLossBackward0": "huber_loss",
    "BinaryCrossEntropyBackward0": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogitsBackward0": "binary_cross_entropy_with_logits",
    "CtcLossBackward0": "ctc_loss",
    "AbsBackward0": "abs",
    "PowBackward0": "square",
}
_OF_CLASSES = frozenset({"cross_entropy", "binary_cross_entropy_with_logits"})
"""Losses of logits: one with a minus has no limit, also beside another one without it."""
_LOGARITHMS = {"LogSoftmaxBackward0", "LogSigmoidBackward0"}
_SAME = {"MeanBackward0", "MeanBackward1", "SumBackward0", "SumBackward1", "DivBackward0"}
_PARTS = {"GatherBackward0", "IndexBackward0", "SqueezeBackward0", "SqueezeBackward1"}


@dataclass(frozen=True, slots=True)
class LossSign:
    """A line whose loss falls without limit as its loss function rises.

    Attributes:
        functions: The loss functions with a negative sign; "log-probabilities" for those with a
            positive one.
        site: The line of the backward pass.
    """

    functions: tuple[str, ...]
    site: Site | None


@dataclass(frozen=True, slots=True)
class LossSigns:
    """All lines of backward passes with such a loss, in all graphs that were searched."""

    signal: ClassVar[str] = "signs"
    lines: tuple[LossSign, ...] = ()


class Signs(Signal):
    """Searches the first graphs of each line."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[Mark | None, list[frozenset[str]]] = {}

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Search the graph of the losses."""
        mark = calling_line()
        if mark not in self._lines and len(self._lines) >= _LINES:
            return
        graphs = self._lines.setdefault(mark, [])
        if len(graphs) < _GRAPHS:
            found = [part for each in losses for part in functions_of(each.grad_fn)]
            right = {name for name, sign in found if sign > 0} - _OF_CLASSES
            graphs.append(frozenset(name for name, sign in found if sign < 0) - right)

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        common = {mark: frozenset.intersection(*each) for mark, each in self._lines.items()}
        lines = tuple(
            LossSign(tuple(sorted(names)), site(mark)) for mark, names in common.items() if names
        )
        return {LossSigns.signal: LossSigns(lines)}


def functions_of(node: Any, sign: int = 1, depth: int = _DEPTH) -> Iterator[tuple[str, int]]:
    """Yield the loss functions that a loss adds up, with their signs."""
    kind = type(node).__name__
    if kind in _LOGARITHMS:
        yield "log-probabilities", -sign
    if kind in _NEVER_NEGATIVE:
        if kind != "PowBackward0" or getattr(node, "_saved_exponent", 1) == 2:
            yield _NEVER_NEGATIVE[kind], sign
    elif depth:
        for below, its in _terms(node, kind):
            yield from functions_of(below, sign * its, depth - 1)


def _terms(node: Any, kind: str) -> list[tuple[Any, int]]:
    """Return the nodes whose results a node adds up, with their signs; none if it computes more."""
    below = [each for each, _ in getattr(node, "next_functions", ())]
    if kind in {"AddBackward0", "SubBackward0"} and getattr(node, "_saved_alpha", 1) > 0:
        return [(below[0], 1), (below[1], 1 if kind == "AddBackward0" else -1)]
    if kind in _SAME | _PARTS:
        return [(below[0], 1)]
    if kind == "NegBackward0" or kind.startswith("RsubBackward"):  # a number minus a tensor
        return [(below[0], -1), *[(each, 1) for each in below[1:]]]
    factor = getattr(node, "_saved_other", None) if kind == "MulBackward0" else None
    if below[1:] == [None] and factor is not None and factor.numel() == 1:
        # A number is a tensor on the CPU here. One on another device, such as a loss scale, is not
        # read, because that would wait; it counts as positive.
        is_known = type(factor) is torch.Tensor and factor.device.type == "cpu"
        return [(below[0], -1 if is_known and float(factor) < 0 else 1)]
    return []
