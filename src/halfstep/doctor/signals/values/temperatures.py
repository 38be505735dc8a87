"""Losses of distillation in which a temperature divides the logits of the teacher alone.

The logits of both sides are meant to be divided by it. The loss is then multiplied by its square,
because each side makes the gradients smaller by one factor. Where the loop multiplies by the square
although the logits of the student are as they are, the student was left out by mistake: a teacher
that is softened on purpose, so that its confidence is right, needs no such factor, and no
temperature as high as those of distillations.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.makers import compared
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_DIVIDES = frozenset({"div", "__truediv__", "true_divide", "divide"})
_MULTIPLIES = frozenset({"mul", "__mul__", "__rmul__", "multiply"})
_SOFTMAXES = frozenset({"softmax", "log_softmax"})
_PASSES = frozenset({"detach", "clone", "view", "reshape", "flatten", "float"})
_DIFFERENCES = frozenset({"sub", "__sub__", "subtract"})
_LOSSES = frozenset({"kl_div", "cross_entropy", "KLDivLoss", "CrossEntropyLoss"})
_NAMES = _DIVIDES | _MULTIPLIES | _SOFTMAXES | _PASSES | _LOSSES | _DIFFERENCES | {"exp"}
_SCALES = frozenset({"DivBackward0", "MulBackward0"})
_SOFT = frozenset({"LogSoftmaxBackward0", "SoftmaxBackward0", "LogBackward0"})
_SOFT |= {"ViewBackward0", "ToCopyBackward0"}
_TERMS = frozenset({"SubBackward0", "NegBackward0"})
_PARTS = frozenset({"SliceBackward0", "IndexBackward0", "MaskedFillBackward0", "SubBackward0"})
_RECENT = 64
_LINES = 16


@dataclass(frozen=True, slots=True)
class OneSided:
    """A line with a loss of which a temperature divides one side.

    Attributes:
        temperature: The temperature.
        count: How often.
        is_squared: Whether the loss is multiplied by the square of the temperature.
        site: The line of the loss.
    """

    temperature: float
    count: int
    is_squared: bool
    site: Site | None


@dataclass(frozen=True, slots=True)
class Temperatures:
    """All such lines."""

    signal: ClassVar[str] = "temperatures"
    lines: tuple[OneSided, ...] = ()


@dataclass(slots=True)
class _Known:
    """What is known of a tensor.

    Attributes:
        tensor: A reference to it.
        kind: "logits" or "distribution" for those of a teacher, divided; "loss" for a loss.
        temperature: The temperature.
        factor: By what a loss was multiplied.
        mark: The line of a loss.
    """

    tensor: weakref.ref[torch.Tensor]
    kind: str
    temperature: float
    factor: float = 1.0
    mark: Mark | None = None


class OneSides(Signal):
    """Follows logits that are divided by a number, until they are targets of a loss."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._known: dict[int, _Known] = {}
        self._lines: dict[Mark | None, list[float]] = {}
        self._squared: set[Mark | None] = set()

    def on_call(self, heard: Heard) -> None:
        """Follow a call of the loop."""
        name = heard.name
        if name not in _NAMES:
            return
        made = heard.result
        if not isinstance(made, torch.Tensor) or not made.is_floating_point():
            return
        if name in _LOSSES:
            self._compare(heard, made)
            return
        known = next(filter(None, map(self._of, heard.given)), None)
        if len(heard.given) == 2:
            self._combine(heard, made, known)
            return
        number = next((each for each in heard.call.args if isinstance(each, int | float)), None)
        if name in _DIVIDES | _MULTIPLIES:
            factor = None if number is None else _factor(name, number)
            if factor is None or isinstance(number, bool) or len(heard.given) != 1:
                return
            if known is not None and known.kind == "loss":
                self._scale(made, known, factor)
            elif not made.requires_grad and made.dim() > 1 and factor < 1:
                before = known.temperature if known is not None else 1.0
                self._keep(made, "logits", before / factor)
        elif name in _SOFTMAXES | _PASSES | {"exp"} and known is not None and known.kind != "loss":
            kind = "distribution" if name in _SOFTMAXES else known.kind
            self._keep(made, kind, known.temperature)

    def _combine(self, heard: Heard, made: torch.Tensor, known: _Known | None) -> None:
        """Find the product of a divergence or a cross entropy that the loop writes out."""
        if known is None or known.kind != "distribution" or heard.name not in _MULTIPLIES:
            return
        other = next((each for each in heard.given if each.requires_grad), None)
        node: Any = None if other is None else other.grad_fn
        while type(node).__name__ in _TERMS:
            nodes = [each for each, _ in node.next_functions if each is not None]
            node = nodes[0] if len(nodes) == 1 else None
        if type(node).__name__ == "LogSoftmaxBackward0":
            self._begin(node, made, known)

    def _compare(self, heard: Heard, made: torch.Tensor) -> None:
        scores, target = compared(heard.call.args, heard.call.kwargs)
        known = self._of(target) if isinstance(target, torch.Tensor) else None
        if known is None or known.kind != "distribution" or not isinstance(scores, torch.Tensor):
            return
        self._begin(scores.grad_fn, made, known)

    def _begin(self, node: Any, made: torch.Tensor, known: _Known) -> None:
        """Follow a loss, if nothing has multiplied or divided the logits of its softmax."""
        while type(node).__name__ in _SOFT | _PARTS:
            node = node.next_functions[0][0]
        if node is None or type(node).__name__ in _SCALES:
            return
        mark = calling_line()
        self._keep(made, "loss", known.temperature, mark=mark)
        if mark in self._lines or len(self._lines) < _LINES:
            self._lines.setdefault(mark, []).append(known.temperature)

    def _scale(self, made: torch.Tensor, known: _Known, factor: float) -> None:
        total = known.factor * factor
        self._keep(made, "loss", known.temperature, total, known.mark)
        if math.isclose(total, known.temperature**2, rel_tol=1e-4):
            self._squared.add(known.mark)

    def _keep(
        self,
        tensor: torch.Tensor,
        kind: str,
        temperature: float,
        factor: float = 1.0,
        mark: Mark | None = None,
    ) -> None:
        self._known[id(tensor)] = _Known(weakref.ref(tensor), kind, temperature, factor, mark)
        while len(self._known) > _RECENT:
            del self._known[next(iter(self._known))]

    def _of(self, tensor: torch.Tensor) -> _Known | None:
        known = self._known.get(id(tensor))
        return known if known is not None and known.tensor() is tensor else None

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        lines = tuple(
            OneSided(temperatures[-1], len(temperatures), mark in self._squared, site(mark))
            for mark, temperatures in self._lines.items()
        )
        return {Temperatures.signal: Temperatures(lines)}


def _factor(name: str, number: float) -> float | None:
    """Return by what a call multiplies; None for 0 and for what is not finite."""
    if not math.isfinite(number) or number <= 0:
        return None
    return 1 / number if name in _DIVIDES else float(number)
