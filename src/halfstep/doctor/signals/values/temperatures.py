"""Losses of distillation in which a temperature divides the logits of the teacher alone.

The logits of both sides are meant to be divided by it. The loss is then multiplied by its square,
because each side makes the gradients smaller by one factor. Where the loop multiplies by the square
although the logits of the student are as they are, the student was left out by mistake: a teacher
that is softened on purpose, so that its confidence is right, needs no such factor.
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
_LOSSES = frozenset({"kl_div", "cross_entropy", "KLDivLoss", "CrossEntropyLoss"})
_NAMES = _DIVIDES | _MULTIPLIES | _SOFTMAXES | _PASSES | _LOSSES
_SCALES = frozenset({"DivBackward0", "MulBackward0"})
_RECENT = 64
_LINES = 16


@dataclass(frozen=True, slots=True)
class OneSided:
    """A line with a loss of which a temperature divides one side.

    Attributes:
        temperature: The temperature.
        count: How often.
        site: The line of the loss.
    """

    temperature: float
    count: int
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
        elif known is not None and known.kind != "loss":
            kind = "distribution" if name in _SOFTMAXES else known.kind
            self._keep(made, kind, known.temperature)

    def _compare(self, heard: Heard, made: torch.Tensor) -> None:
        scores, target = compared(heard.call.args, heard.call.kwargs)
        known = self._of(target) if isinstance(target, torch.Tensor) else None
        if known is None or known.kind != "distribution" or not isinstance(scores, torch.Tensor):
            return
        node: Any = scores.grad_fn
        while type(node).__name__ in {"LogSoftmaxBackward0", "ViewBackward0", "ToCopyBackward0"}:
            node = node.next_functions[0][0]
        if node is not None and type(node).__name__ not in _SCALES:
            self._keep(made, "loss", known.temperature, mark=calling_line())

    def _scale(self, made: torch.Tensor, known: _Known, factor: float) -> None:
        total = known.factor * factor
        self._keep(made, "loss", known.temperature, total, known.mark)
        is_square = math.isclose(total, known.temperature**2, rel_tol=1e-4)
        if is_square and (known.mark in self._lines or len(self._lines) < _LINES):
            self._lines.setdefault(known.mark, []).append(known.temperature)

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
            OneSided(temperatures[-1], len(temperatures), site(mark))
            for mark, temperatures in self._lines.items()
        )
        return {Temperatures.signal: Temperatures(lines)}


def _factor(name: str, number: float) -> float | None:
    """Return by what a call multiplies; None for 0 and for what is not finite."""
    if not math.isfinite(number) or number <= 0:
        return None
    return 1 / number if name in _DIVIDES else float(number)
