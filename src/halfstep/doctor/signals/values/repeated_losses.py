"""Losses of evaluations in half precision that stay the same although the weights change.

Two evaluations after different steps hardly ever have the same loss in fp32. In half precision they
do where the loss has changed by less than the distance to the next number.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tape.tape import autocast_state
from halfstep.formats import format_name
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_LOSSES = {"cross_entropy", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits"}
_LOOKS = 64  # on an accelerator, where each look waits for the device
_LINES = 16
_BATCHES = 1024


@dataclass(frozen=True, slots=True)
class RepeatedLoss:
    """A line that computes the loss of an evaluation in half precision, outside autocast.

    Attributes:
        name: The function's name in torch, or the module's class.
        format: Format of the loss.
        count: Number of losses of batches that were evaluated before, after fewer steps.
        equal: Number of these that are equal to the batch's loss in the evaluation before.
        site: The line.
    """

    name: str
    format: str
    count: int
    equal: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class RepeatedLosses:
    """All such lines with equal losses."""

    signal: ClassVar[str] = "repeated losses"
    lines: tuple[RepeatedLoss, ...] = ()


@dataclass(slots=True)
class _Line:
    name: str
    format: str
    step: int = -1
    batch: int = 0
    known: list[float] = field(default_factory=list)
    count: int = 0
    equal: int = 0


def is_loss_name(name: str) -> bool:
    """Return whether a function or a module with this name is a loss."""
    return name.lower().endswith("loss") or name in _LOSSES


class RepeatedLossSignal(Signal):
    """Compares the losses of successive evaluations, batch by batch."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[Mark | None, _Line] = {}
        self._looks = 0

    def on_call(self, heard: Heard) -> None:
        """Examine a loss in half precision that needs no gradients."""
        if not (heard.halves and is_loss_name(heard.name)) or autocast_state():
            return
        loss = heard.halves[0]
        if loss.requires_grad or loss.numel() != 1 or self._looks >= _LOOKS:
            return
        self._looks += loss.device.type != "cpu"
        mark = calling_line()
        if mark in self._lines or len(self._lines) < _LINES:
            line = self._lines.setdefault(mark, _Line(heard.name, format_name(loss.dtype)))
            self._compare(line, float(loss))

    def _compare(self, line: _Line, loss: float) -> None:
        step = self.watched.grammar.made
        line.batch = line.batch + 1 if step == line.step else 0
        line.step = step
        if line.batch < len(line.known):
            line.count += 1
            line.equal += loss == line.known[line.batch] != 0
            line.known[line.batch] = loss
        elif line.batch < _BATCHES:
            line.known.append(loss)

    def freeze(self) -> dict[str, Any]:
        """Return the lines with equal losses."""
        found = (
            RepeatedLoss(line.name, line.format, line.count, line.equal, site(mark))
            for mark, line in self._lines.items()
            if line.equal
        )
        return {RepeatedLosses.signal: RepeatedLosses(tuple(found))}
