"""Generators that are used up, and over which the code of each step runs again.

An expression such as `sum(each.norm() for each in self.weights)` has no terms from the second step
on, if a generator is kept in place of a list. Two early steps are looked at: whatever was used up
in the first of them gives nothing in the second one.
"""

from __future__ import annotations

import ast
from types import FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, ClassVar

from halfstep.doctor.record.blocks import binds, function_at, loops_around, passed_on
from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.data.generators import frames_of_user, is_kept, value_of
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.signal import Heard

_STEPS = (2, 3)
_CALLS = 256  # in each of them
_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.If, ast.Try)
"""What is inside of these may not run in each pass."""


@dataclass(frozen=True, slots=True)
class Reread:
    """A line that runs over such a generator in each step.

    Attributes:
        name: The variable or attribute that holds it.
        site: The line.
    """

    name: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class RereadGenerators:
    """All such lines."""

    signal: ClassVar[str] = "reread generators"
    found: tuple[Reread, ...] = ()


class Rereading(Signal):
    """Looks at the functions that call torch in two early steps."""

    def __init__(self, watched: Any) -> None:
        super().__init__(watched)
        self._used_up: dict[tuple[Mark, str], Any] = {}
        self._found: dict[tuple[Mark, str], Reread] = {}
        self._looks: set[tuple[int, Any]] = set()

    def on_call(self, heard: Heard) -> None:
        """Look at the functions that run, once at each line."""
        del heard
        made = self.watched.grammar.made
        if made not in _STEPS or len(self._looks) >= _CALLS * len(_STEPS):
            return
        for mark, frame in frames_of_user():
            if (made, mark) in self._looks:
                return  # The functions that call it have been looked at.
            self._looks.add((made, mark))
            for line, expression in _iterated(mark, frame):
                value = value_of(expression, frame)
                if not isinstance(value, GeneratorType) or value.gi_frame is not None:
                    continue
                key = (mark[0], line, mark[2]), ast.unparse(expression)
                if made == _STEPS[0]:
                    self._used_up[key] = value
                elif self._used_up.get(key) is value:
                    self._found[key] = Reread(key[1], site(key[0]))

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        self._used_up.clear()
        return {RereadGenerators.signal: RereadGenerators(tuple(self._found.values()))}


def _iterated(mark: Mark, frame: FrameType) -> Iterator[tuple[int, ast.expr]]:
    """Yield what each pass of a function, or of the loop around a line, runs over, with its line.

    Variables that each pass makes anew, and attributes that are assigned several times, are left
    out.
    """
    loops = [each for each, _ in loops_around(mark) if isinstance(each, ast.For)]
    code = frame.f_code
    scope = loops[-1] if loops else function_at(mark[0], code.co_firstlineno, code.co_name)
    if scope is None:
        return
    for node in _that_run(scope.body):
        for each in passed_on(node.iter):
            is_new = not loops and isinstance(each, ast.Name) and each.id in code.co_varnames
            if not is_new and not binds(scope, each) and is_kept(each, frame):
                yield node.iter.lineno, each


def _that_run(body: list[ast.stmt]) -> Iterator[ast.For | ast.comprehension]:
    """Yield the loops and comprehensions in some statements that run in each pass of these."""
    for statement in body:
        waiting: list[ast.AST] = [statement]
        while waiting:
            node = waiting.pop()
            if isinstance(node, _APART):
                inside = () if isinstance(node, ast.FunctionDef | ast.Lambda) else ast.walk(node)
                if any(isinstance(each, ast.Return | ast.Continue | ast.Break) for each in inside):
                    return
                continue
            if isinstance(node, ast.For | ast.comprehension):
                yield node
            waiting += ast.iter_child_nodes(node)
