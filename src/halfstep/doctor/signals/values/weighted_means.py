"""Losses that are means over the samples already, and are then multiplied by weights of samples.

The mean is one number, so each weight multiplies the same number, and only the mean of the weights
has an effect. The graph of a loss shows it in sampled steps: a mean or a sum of a product of one
number, the result of a loss, and as many weights as that loss had samples.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.internals import node_number, saved_by, shape_made
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tensors.elements import some
from halfstep.doctor.tensors.graph import terms_in
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_REDUCTIONS = frozenset({"MeanBackward0", "SumBackward0"})
_PRODUCTS = frozenset({"MulBackward0", "DivBackward0"})
_NAMES = frozenset({"mul", "__mul__", "__rmul__", "div", "__truediv__", "multiply", "divide"})
_LOSSES = frozenset(
    f"{name}Backward0"
    for name in (
        *("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "HuberLoss", "MseLoss"),
        *("NllLoss", "NllLoss2D", "SmoothL1Loss"),
    )
)
_ERRORS = frozenset({*_LOSSES, "AbsBackward0", "PowBackward0"})
_AVERAGES = 1  # the reduction "mean" of a loss, as autograd holds it
_ELEMENTS = 64
_LINES = 16
_RECENT = 64


@dataclass(frozen=True, slots=True)
class WeightedMean:
    """A line that multiplies the mean of a loss by weights of the samples.

    Attributes:
        samples: Number of samples.
        weights: Shape of the weights.
        count: In how many of the examined steps.
        examined: Number of examined steps.
        site: The line of the product, or of the backward.
    """

    samples: int
    weights: tuple[int, ...]
    count: int
    examined: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class WeightedMeans:
    """All such lines."""

    signal: ClassVar[str] = "weighted means"
    lines: tuple[WeightedMean, ...] = ()


@dataclass(slots=True)
class _Line:
    samples: int
    shape: tuple[int, ...]
    differ: list[torch.Tensor]


class Weighting(Signal):
    """Looks at the products below the losses of sampled steps."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._steps = 1
        self._on = True
        self._examined = 0
        self._products: OrderedDict[int, Mark | None] = OrderedDict()
        self._lines: dict[Mark | None, _Line] = {}

    def on_call(self, heard: Heard) -> None:
        """Note the line of a product that the loop makes of one number and a tensor."""
        if not self._on or heard.name not in _NAMES or len(heard.given) != 2:
            return
        made = heard.result
        if not isinstance(made, torch.Tensor) or not made.dim() or made.grad_fn is None:
            return
        if any(each.requires_grad and not each.dim() for each in heard.given):
            self._products[node_number(made.grad_fn)] = calling_line()
            if len(self._products) > _RECENT:
                self._products.popitem(last=False)

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Look at the terms of the losses."""
        if self._on:
            self._examined += 1
            for node in terms_in(losses):
                self._look(node)
            self._products.clear()
        self._steps += 1
        self._on = is_sampled(self._steps)

    def _look(self, node: Any) -> None:
        product: Any = node.next_functions[0][0] if type(node).__name__ in _REDUCTIONS else None
        if type(product).__name__ not in _PRODUCTS or not shape_made(product):
            return
        below = [each for each, _ in product.next_functions]
        factors = [each for each in below if each is not None]
        if len(below) != 2 or len(factors) != 1 or shape_made(factors[0]):
            return
        samples = next(filter(None, map(_samples, terms_in((), factors))), 0)
        weights = saved_by(product, "other" if below[0] is factors[0] else "self")
        if samples < 2 or not _is_plain(weights) or samples not in _counts(weights):
            return
        mark = self._products.get(node_number(product)) or calling_line()
        if mark not in self._lines and len(self._lines) >= _LINES:
            return
        line = self._lines.setdefault(mark, _Line(samples, tuple(weights.shape), []))
        elements = some(weights, _ELEMENTS)
        line.differ.append((elements != elements[0]).any())

    def freeze(self) -> dict[str, Any]:
        """Return the lines whose weights differ; reads whether they do."""
        lines = []
        for mark, each in self._lines.items():
            count = sum(bool(differ) for differ in each.differ)
            if count:
                found = WeightedMean(each.samples, each.shape, count, self._examined, site(mark))
                lines.append(found)
        return {WeightedMeans.signal: WeightedMeans(tuple(lines))}


def _samples(node: Any) -> int:
    """Return the number of samples of a loss that is a mean over them; 0 for other nodes."""
    if type(node).__name__ in _LOSSES and saved_by(node, "reduction") == _AVERAGES:
        shape = saved_by(node, "self").shape
        return int(shape[0]) if shape else 0
    if type(node).__name__ != "MeanBackward0":
        return 0
    errors = node.next_functions[0][0]
    shape = shape_made(errors) if type(errors).__name__ in _ERRORS else ()
    return shape[0] if shape else 0


def _is_plain(weights: Any) -> bool:
    return type(weights) is torch.Tensor and weights.layout is torch.strided and weights.dim() > 0


def _counts(weights: torch.Tensor) -> tuple[int, int]:
    """Return how many samples weights may be for."""
    return len(weights), weights.numel()
