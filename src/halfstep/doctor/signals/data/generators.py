"""Generators and other iterators over which a loop of steps runs again when they are used up.

An iterator gives its items once. A loop over one that is made before a loop over epochs makes steps
in the first epoch only. The loop over epochs may be in another function, which passes the iterator
on. An iterator does not tell that it is asked again; but the loop over epochs runs on, which is
seen when it evaluates, or by its `range`.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import field
from itertools import islice
from operator import length_hint
from types import FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, ClassVar

from halfstep.doctor.internals import calling_frame
from halfstep.doctor.record.blocks import assignments_of, binds, loops_around, passed_on
from halfstep.doctor.record.sites import Mark, Site, is_of_user, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

_LINES = 16
_WRAPPERS = (zip, map, filter, enumerate, islice)
_LISTS: tuple[Any, ...] = ([], (), range(0), {}, {}.values(), {}.items())
_ITEMS = tuple({type(iter(each)) for each in _LISTS})
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


@dataclass(frozen=True, slots=True)
class UsedUpGenerator:
    """A generator that is used up, in a loop that runs again.

    Attributes:
        name: The variable or attribute that holds it.
        kind: "generator" or "iterator".
        steps: Number of steps in the loop over it.
        later: Number of passes of the loop around it after its end that were seen.
        planned: Number of passes of this loop by its `range`; 0 if unknown.
        site: The first line of the loop over it.
    """

    name: str
    kind: str
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
    iterator: Any
    code: Any
    target: str
    planned: int
    first: Mark
    steps: int = 0
    later: set[Any] = field(default_factory=set)
    now: Any = None

    @property
    def is_used_up(self) -> bool:
        """Whether the iterator has no more items."""
        return _is_used_up(self.iterator)

    @property
    def kind(self) -> str:
        return "generator" if isinstance(self.iterator, GeneratorType) else "iterator"


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
            self._loops[mark] = _loop_around([*frames_of_user()])
        loop = self._loops.get(mark)
        if loop is not None:
            loop.steps += 1
            if (frame := _frame_of(loop.code)) is not None:
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
            UsedUpGenerator(
                each.name, each.kind, each.steps, len(each.later), each.planned, site(each.first)
            )
            for each in self._loops.values()
            if each is not None and each.is_used_up
        )
        return {UsedUpGenerators.signal: UsedUpGenerators(tuple(found))}


def frames_of_user() -> Iterator[tuple[Mark, FrameType]]:
    """Yield the running functions of the user, with their lines, innermost first."""
    frame: FrameType | None = calling_frame()
    while frame is not None:
        code = frame.f_code
        if is_of_user(code.co_filename) and code.co_name not in _COMPREHENSIONS:
            yield (code.co_filename, frame.f_lineno, code.co_name), frame
        frame = frame.f_back


def _loop_around(frames: list[tuple[Mark, FrameType]]) -> _Loop | None:
    """Return the innermost loop over an iterator, if another loop around it runs it again."""
    for place, (mark, frame) in enumerate(frames):
        loops = loops_around(mark)
        for inner in reversed(range(len(loops))):
            for each in passed_on(loops[inner][1]):
                value = value_of(each, frame)
                if not isinstance(value, (GeneratorType, *_WRAPPERS, *_ITEMS)):
                    continue
                around = [one for one, _ in loops[:inner]]
                outer, code = _again(each, around, frame), frame
                if outer is None and not around:
                    outer, code = _again_outside(each, value, frames[place + 1 :]) or (None, frame)
                if outer is None or not isinstance(outer.target, ast.Name):
                    return None
                name, first = ast.unparse(each), (mark[0], _line(loops[inner][0]), mark[2])
                planned = _count(outer.iter, code)
                return _Loop(name, value, code.f_code, outer.target.id, planned, first)
    return None


def _again(expression: ast.expr, loops: list[ast.AST], frame: FrameType) -> ast.For | None:
    """Return the innermost of some loops if it does not make an iterator anew."""
    outer = loops[-1] if loops else None
    if not isinstance(outer, ast.For) or binds(outer, expression):
        return None
    return outer if is_kept(expression, frame) else None


def _again_outside(
    expression: ast.expr, value: Any, frames: list[tuple[Mark, FrameType]]
) -> tuple[ast.For, FrameType] | None:
    """Return the innermost loop in a caller if it passes the same iterator on in each pass."""
    for mark, frame in frames:
        for outer, _ in reversed(loops_around(mark)):
            if not isinstance(outer, ast.For):
                return None
            names = [each for each in ast.walk(outer) if isinstance(each, ast.Name | ast.Attribute)]
            held = [each for each in names if value_of(each, frame) is value]
            if isinstance(expression, ast.Attribute) and is_kept(expression, frame):
                return outer, frame
            if held and not any(binds(outer, each) for each in held):
                return (outer, frame) if is_kept(held[0], frame) else None
            return None
    return None


def is_kept(expression: ast.expr, frame: FrameType) -> bool:
    """Return whether an attribute is only assigned once: a method may do it for each pass."""
    if not isinstance(expression, ast.Attribute):
        return True
    return assignments_of(frame.f_code.co_filename, expression.attr) == 1


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _is_used_up(iterator: Any) -> bool:
    """Return whether an iterator has no more items; without asking it, which may run code."""
    if isinstance(iterator, GeneratorType):
        return iterator.gi_frame is None
    if isinstance(iterator, _WRAPPERS):
        parts = gc.get_referents(iterator)
        parts += [one for each in parts if isinstance(each, tuple) for one in each]
        return any(isinstance(each, Iterator) and _is_used_up(each) for each in parts)
    return isinstance(iterator, _ITEMS) and length_hint(iterator) == 0


def value_of(expression: ast.expr, frame: FrameType) -> Any:
    """Return the value of a variable, of its attribute or its item; None if it is unknown."""
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    if isinstance(expression, ast.Attribute):
        return getattr(value_of(expression.value, frame), "__dict__", {}).get(expression.attr)
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        holder = value_of(expression.value, frame)
        return holder.get(expression.slice.value) if type(holder) is dict else None
    return None


def _count(over: ast.expr, frame: FrameType) -> int:
    """Return the number of passes of a loop over `range(...)`; 0 if it is unknown."""
    if not (isinstance(over, ast.Call) and over.args):
        return 0
    name = over.func.attr if isinstance(over.func, ast.Attribute) else ast.unparse(over.func)
    if not name.endswith("range"):  # range, trange
        return _count(over.args[0], frame)  # a progress bar
    values = []
    for each in over.args:
        value = each.value if isinstance(each, ast.Constant) else value_of(each, frame)
        if not isinstance(value, int):
            return 0
        values.append(value)
    return len(range(*values[:3]))


def _frame_of(code: Any) -> FrameType | None:
    """Return the innermost running frame of a function."""
    frame: FrameType | None = calling_frame()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame
