"""Generators over which a loop of training steps runs again when they are used up.

A generator gives its items once. A loop over a variable that holds one, inside a loop over epochs,
makes steps in the first epoch only. A generator does not tell that it is asked again; but the loop
over epochs runs on, which is seen when it evaluates, or by its `range`.
"""

from __future__ import annotations

import ast
from dataclasses import field
from types import FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, ClassVar

from halfstep.doctor.internals import calling_frame
from halfstep.doctor.record.blocks import loop_run_again
from halfstep.doctor.record.sites import Mark, Site, calling_lines, frame_at, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_LINES = 16


@dataclass(frozen=True, slots=True)
class UsedUpGenerator:
    """A generator that is used up, in a loop that runs again.

    Attributes:
        name: The variable that holds it.
        steps: Number of steps in the loop over it.
        later: Number of passes of the loop around it after its end that were seen.
        planned: Number of passes of this loop by its `range`; 0 if unknown.
        site: The first line of the loop over it.
    """

    name: str
    steps: int
    later: int
    planned: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class UsedUpGenerators:
    """All such generators."""

    signal: ClassVar[str] = "generators"
    found: tuple[UsedUpGenerator, ...] = ()


@dataclass(slots=True)
class _Loop:
    name: str
    generator: GeneratorType[Any, Any, Any] | None
    code: Any
    target: str
    planned: int
    first: Mark
    steps: int = 0
    later: set[Any] = field(default_factory=set)
    now: Any = None

    @property
    def is_used_up(self) -> bool:
        """Whether the generator has no more items."""
        return self.generator is not None and self.generator.gi_frame is None


class Generators(Signal):
    """Looks at what the loops around the lines of steps run over."""

    def __init__(self, watched: Any) -> None:
        super().__init__(watched)
        self._loops: dict[Mark, _Loop | None] = {}

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Look at the loop around a line and its callers, at its first step; count its steps."""
        del optimizer, number
        if mark is None:
            return
        if mark not in self._loops and len(self._loops) < _LINES:
            found = (_loop_at(each, frame_at(each)) for each in calling_lines())
            self._loops[mark] = next((each for each in found if each is not None), None)
        loop = self._loops.get(mark)
        if loop is not None:
            loop.steps += 1
            if loop.generator is not None and (frame := _frame_of(loop.code)) is not None:
                loop.now = frame.f_locals.get(loop.target)

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Note in which passes of the outer loop there are evaluations, but no steps any more."""
        del module, mark
        for loop in self._loops.values():
            if loop is None or not loop.is_used_up:
                continue
            frame = _frame_of(loop.code)
            value = None if frame is None else frame.f_locals.get(loop.target)
            if isinstance(value, int) and value != loop.now:
                loop.later.add(value)

    def freeze(self) -> dict[str, Any]:
        """Return the generators that are used up."""
        found = (
            UsedUpGenerator(each.name, each.steps, len(each.later), each.planned, site(each.first))
            for each in self._loops.values()
            if each is not None and each.is_used_up
        )
        return {UsedUpGenerators.signal: UsedUpGenerators(tuple(found))}


def _loop_at(mark: Mark, frame: FrameType | None) -> _Loop | None:
    loops = loop_run_again(mark)
    if loops is None or frame is None:
        return None
    inner, name, outer = loops
    value = frame.f_locals.get(name, frame.f_globals.get(name))
    if not isinstance(value, GeneratorType) or not isinstance(outer.target, ast.Name):
        return None
    first = mark[0], inner.lineno, mark[2]
    return _Loop(name, value, frame.f_code, outer.target.id, _count(outer.iter, frame), first)


def _count(over: ast.expr, frame: FrameType) -> int:
    """Return the number of passes of a loop over `range(...)`; 0 if it is unknown."""
    if not (isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.args):
        return 0
    if over.func.id != "range" or len(over.args) > 2:
        return 0
    values = []
    for each in over.args:
        value = each.value if isinstance(each, ast.Constant) else None
        if isinstance(each, ast.Name):
            value = frame.f_locals.get(each.id, frame.f_globals.get(each.id))
        if not isinstance(value, int):
            return 0
        values.append(value)
    return len(range(*values))


def _frame_of(code: Any) -> FrameType | None:
    """Return the innermost running frame of a function."""
    frame: FrameType | None = calling_frame()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame
