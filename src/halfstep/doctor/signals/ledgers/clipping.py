"""Calls of `clip_grad_norm_`: whether they get gradients, and how much they clip."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.internals import clipping
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.values.samples import is_sampled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.optim import Optimizer

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.watched import Watched

_LINES = 16
_NORMS = 64
_ARGUMENTS = ("parameters", "max_norm", "total_norm", "foreach")
_EMPTY, _BARE, _USEFUL = range(3)  # no parameter; parameters without gradients; gradients


@dataclass(frozen=True, slots=True)
class ClippingLine:
    """A line that clips gradients.

    Attributes:
        steps: Number of steps before which it ran.
        empty: Number of these before which it got no parameters.
        bare: Number of these before which it got parameters, and none of them had a gradient.
        calls: Number of its calls.
        late: Number of its calls after a step that had used the gradients.
        carried: Number of these whose gradients were not cleared before the next backward.
        in_step: Whether it ran inside `optimizer.step()`, in a hook.
        copies: Whether none of the tensors that it got was a parameter or required a gradient.
        limit: The norm to which it clips.
        norms: Some norms of the gradients before it.
        site: The line.
    """

    steps: int
    empty: int
    bare: int
    calls: int
    late: int
    carried: int
    in_step: bool
    copies: bool
    limit: float
    norms: tuple[float, ...]
    site: Site | None


@dataclass(frozen=True, slots=True)
class ClippingLines:
    """All such lines."""

    signal: ClassVar[str] = "clipping"
    lines: tuple[ClippingLine, ...] = ()


@dataclass(slots=True)
class _Line:
    now: int | None = None
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    calls: int = 0
    late: int = 0
    carried: int = 0
    in_step: bool = False
    copies: bool = True
    limit: float = 0.0
    norms: list[torch.Tensor] = field(default_factory=list)


class Clipping(Signal):
    """Counts the calls of each line, by the steps that follow them."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[Mark | None, _Line] = {}
        # Since the last backward: versions of parameters before their step, and late lines.
        self._versions: dict[int, int] = {}
        self._late: list[_Line] = []

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the function that `clip_grad_norm_` or the loop itself calls."""
        for owner, name in clipping():
            yield Hook(owner, name, self.watched.here(self._on_clip))

    def _on_clip(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(_ARGUMENTS, args, strict=False), **kwargs)
        parameters = given.get("parameters", ())
        in_step = not self.watched.guard.is_outside
        with self.watched.guard.own():
            one = isinstance(parameters, torch.Tensor)
            given["parameters"] = parameters = [parameters] if one else [*parameters]
            mark = calling_line()
            if mark in self._lines or len(self._lines) < _LINES:
                line = self._lines.setdefault(mark, _Line())
                self._note(line, parameters, given)
                line.in_step = in_step
        return original(**given)

    def _note(self, line: _Line, parameters: list[Any], given: dict[str, Any]) -> None:
        use = _EMPTY
        if parameters:
            use = _USEFUL if any(each.grad is not None for each in parameters) else _BARE
            line.copies &= not any(
                each.requires_grad or isinstance(each, nn.Parameter) for each in parameters
            )
        line.calls += 1
        if self._have_stepped(parameters):
            line.late += 1
            self._late.append(line)
        line.now = use if line.now is None else max(use, line.now)
        norm = given.get("total_norm")
        if isinstance(norm, torch.Tensor) and is_sampled(sum(line.counts) + 1):
            line.limit = float(given["max_norm"])
            line.norms.append(norm.detach())

    def _have_stepped(self, parameters: list[Any]) -> bool:
        """Return whether a step has changed these parameters since the last backward."""
        known = [each for each in parameters if id(each) in self._versions]
        return bool(known) and all(self._versions[id(each)] < each._version for each in known)

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Remember the versions of some parameters, if a line clips gradients."""
        del number, mark
        if self._lines:
            probes = self.watched.grammar.state(optimizer).probes
            self._versions |= {id(each): each._version for each in probes}

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Count the lines that have run before a step."""
        del mark
        if kind == "zero":
            self._late.clear()
        elif kind == "backward":
            for line in self._late:
                line.carried += 1
            self._late.clear()
            self._versions.clear()
        if kind == "step" or (kind == "scaler step" and facts["skipped"]):
            for line in self._lines.values():
                if line.now is not None:
                    line.counts[line.now] += 1
                    line.now = None

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        lines = tuple(
            ClippingLine(
                sum(line.counts),
                line.counts[_EMPTY],
                line.counts[_BARE],
                line.calls,
                line.late,
                line.carried,
                line.in_step,
                line.copies,
                line.limit,
                tuple(float(each) for each in line.norms[:_NORMS]),
                site(mark),
            )
            for mark, line in self._lines.items()
        )
        return {ClippingLines.signal: ClippingLines(lines)}
