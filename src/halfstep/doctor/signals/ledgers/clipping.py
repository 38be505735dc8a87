"""Calls of `clip_grad_norm_`, whether they get gradients and how much they clip; other writes.

torch calls a dozen functions with all gradients to clip them. They are told to the signals as one
norm and one write, unless a gradient is of a kind whose calls say more.

The loop may also shrink gradients by its own writes in place. In sampled steps, the norms of a few
gradients are compared, before the first of these writes and at the step.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.internals import clipping, total_norm
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Heard, Hook, Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.signals.values.origins import Origins
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tape.listener import Call
from halfstep.doctor.tensors.local import local
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.optim import Optimizer

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.watched import Watched

_LINES = 16
_NORMS = 64
_PROBES = 8  # gradients
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
class ShrinkingLine:
    """A line that is the first to write gradients in place between a backward pass and a step.

    Attributes:
        optimizer: Number of the optimizer that uses them.
        by: Name of the function that writes.
        norms: In some steps, the norm of a few gradients before the write, and at the step.
        site: The line.
    """

    optimizer: int
    by: str
    norms: tuple[tuple[float, float], ...]
    site: Site | None


@dataclass(frozen=True, slots=True)
class ClippingLines:
    """All such lines."""

    signal: ClassVar[str] = "clipping"
    lines: tuple[ClippingLine, ...] = ()
    shrinking: tuple[ShrinkingLine, ...] = ()


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
        self._probes: list[torch.Tensor] = []  # of the optimizer of the next step, if it is sampled
        self._first: tuple[Mark | None, str] = None, ""  # the line of the first write, and its name
        self._norms: dict[int, torch.Tensor] = {}
        self._shrinking: dict[tuple[int, Mark | None, str], list[torch.Tensor]] = {}
        # Since the last backward: versions of parameters before their step, and late lines.
        self._versions: dict[int, int] = {}
        self._late: list[_Line] = []

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the functions of which `clip_grad_norm_` consists."""
        for owner, name in clipping():
            yield Hook(owner, name, self.watched.here(self._on_clip))
        owner, name = total_norm()
        if hasattr(owner, name):
            yield Hook(owner, name, self.watched.here(self._on_norm))

    def _on_norm(self, original: Any, tensors: Any, /, *args: Any, **kwargs: Any) -> Any:
        is_whole = self.watched.is_outside()
        with self.watched.guard.own():
            is_whole = is_whole and isinstance(tensors, list) and _are_plain(tensors)
        if not is_whole:
            return original(tensors, *args, **kwargs)
        with self.watched.guard.inside():
            norm = original(tensors, *args, **kwargs)
        with self.watched.guard.own():
            self.watched.grammar.notice_read(calling_line(), tensors)
            self.watched.grammar.notice_use(tensors)
            self.watched[Origins].miss(norm)
            call = Call(torch.linalg.vector_norm, (tensors[0],), {}, None)
            self.watched.tell("on_call", Heard("linalg_vector_norm", call, tensors, [], norm))
        return norm

    def _on_clip(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(_ARGUMENTS, args, strict=False), **kwargs)
        parameters, gradients = given.get("parameters", ()), []
        is_outside, is_whole = self.watched.guard.is_outside, self.watched.is_outside()
        with self.watched.guard.own():
            one = isinstance(parameters, torch.Tensor)
            given["parameters"] = parameters = [parameters] if one else [*parameters]
            mark = calling_line()
            if mark in self._lines or len(self._lines) < _LINES:
                line = self._lines.setdefault(mark, _Line())
                self._note(line, parameters, given)
                line.in_step = not is_outside
            gradients = [each.grad for each in parameters if each.grad is not None]
            is_whole = is_whole and _are_plain(gradients)
        if not is_whole:
            return original(**given)
        with self.watched.guard.inside():
            original(**given)
        with self.watched.guard.own():
            self.watched.grammar.notice_writes(calling_line(), gradients, given.get("total_norm"))
        return None

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

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Measure gradients before the loop writes them."""
        del values
        if not self._probes:
            return
        gradients = {id(each.grad): place for place, each in enumerate(self._probes)}
        for each in written:
            place = gradients.get(id(each))
            if place is not None and place not in self._norms and each.layout is torch.strided:
                self._first = self._first if self._norms else (calling_line(), name)
                self._norms[place] = torch.linalg.vector_norm(local(each).detach())

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Compare the gradients that the loop has written; note the versions of parameters."""
        del mark
        if self._lines:
            probes = self.watched.grammar.state(optimizer).probes
            self._versions |= {id(each): each._version for each in probes}
        if self._norms:
            now = [
                torch.linalg.vector_norm(local(gradient).detach())
                for place in self._norms
                if (gradient := self._probes[place].grad) is not None
            ]
            line = self._shrinking.setdefault((number, *self._first), [])
            if len(now) == len(self._norms) and len(self._shrinking) <= _LINES:
                norms = [torch.stack(each).norm() for each in ([*self._norms.values()], now)]
                line.append(torch.stack(norms))
            self._norms = {}

    def after_step(self, optimizer: Optimizer) -> None:
        """Choose the gradients that are compared in the next step."""
        self._probes, self._norms = [], {}
        if is_sampled(self.watched.registry.optimizer(optimizer).steps):
            trained = [each for each in parameters_of(optimizer) if each.requires_grad]
            self._probes = trained[:: max(1, len(trained) // _PROBES)][:_PROBES]

    def _have_stepped(self, parameters: list[Any]) -> bool:
        """Return whether a step has changed these parameters since the last backward."""
        known = [each for each in parameters if id(each) in self._versions]
        return bool(known) and all(self._versions[id(each)] < each._version for each in known)

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
        shrinking = tuple(
            ShrinkingLine(
                number, by, tuple((float(each[0]), float(each[1])) for each in norms), site(mark)
            )
            for (number, mark, by), norms in self._shrinking.items()
        )
        return {ClippingLines.signal: ClippingLines(lines, shrinking)}


def _are_plain(gradients: list[torch.Tensor]) -> bool:
    """Return whether these are fp32 gradients that are not on a graph."""
    return bool(gradients) and all(
        type(each) is torch.Tensor
        and each.dtype == torch.float32
        and each.layout is torch.strided
        and not each.requires_grad
        for each in gradients
    )
