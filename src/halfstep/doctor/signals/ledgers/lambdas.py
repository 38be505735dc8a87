"""Finds functions for the groups of LambdaLR that all read the last value of one loop variable.

Python looks up a variable when a function is called. Functions that a loop makes from one piece of
code share the loop's variable, so they all compute with its last value.
"""

from __future__ import annotations

import ast
import dis
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from torch.optim.lr_scheduler import LambdaLR, MultiplicativeLR

from halfstep.doctor.record.classes import nodes_of
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.state.facts import innermost
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

    from halfstep.doctor.signals.watched import Watched

_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
_LOOPS = (ast.For, ast.ListComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class Shared:
    """Functions of one scheduler that a loop has made, and that share its variable.

    Attributes:
        optimizer: Number of the scheduler's optimizer.
        kind: Class of the scheduler.
        count: Number of the functions.
        names: The variables of the loop that the functions read.
        made_by: The statement that makes the functions.
        site: The line that makes the functions.
    """

    optimizer: int
    kind: str
    count: int
    names: tuple[str, ...]
    made_by: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class SharedFunctions:
    """All such functions."""

    signal: ClassVar[str] = "lambdas"
    found: tuple[Shared, ...] = ()


class Lambdas(Signal):
    """Compares the functions of each new scheduler."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._found: list[tuple[int, str, list[FunctionType], Mark | None]] = []

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the constructors that take functions."""
        for kind in (LambdaLR, MultiplicativeLR):
            yield Hook(kind, "__init__", self.watched.afterwards(self._on_made))

    def _on_made(self, scheduler: LambdaLR | MultiplicativeLR, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            same = _same(scheduler.lr_lambdas)
            if len(same) > 1:
                optimizer = innermost(scheduler.optimizer)
                self.watched.registry.optimizer(optimizer)
                number = self.watched.registry.optimizers.number(optimizer)
                self._found.append((number, type(scheduler).__name__, same, calling_line()))

    def freeze(self) -> dict[str, Any]:
        """Return the functions that read a variable of the loop around them."""
        found = []
        for number, kind, functions, mark in self._found:
            code = functions[0].__code__
            used = {*code.co_freevars} | {
                str(each.argval) for each in dis.get_instructions(code) if each.opname in _GLOBALS
            }
            where = (code.co_filename, code.co_firstlineno, "")
            if names := sorted(_loop_variables(*where[:2]) & used):
                shared = Shared(
                    number,
                    kind,
                    len(functions),
                    tuple(names),
                    statement(where),
                    site(where) or site(mark),
                )
                found.append(shared)
        return {SharedFunctions.signal: SharedFunctions(tuple(found))}


def _same(functions: list[Any]) -> list[FunctionType]:
    """Return the different functions that have all in common: code, cells and defaults."""
    made = {id(each): each for each in functions if hasattr(each, "__code__")}
    alike: defaultdict[Any, list[FunctionType]] = defaultdict(list)
    for each in made.values():
        alike[each.__code__, *_parts(each)].append(each)
    return max(alike.values(), key=len, default=[])


def _parts(function: Any) -> list[int]:
    return [id(each) for each in chain(function.__closure__ or (), function.__defaults__ or ())] + [
        id(each) for each in (function.__kwdefaults__ or {}).values()
    ]


def _loop_variables(file: str, line: int) -> set[str]:
    """Return the variables of the loops around the function that begins at a line."""
    names: set[str] = set()
    for loop in nodes_of(file):
        if not isinstance(loop, _LOOPS):
            continue
        functions = [
            each for each in ast.walk(loop) if isinstance(each, ast.Lambda | ast.FunctionDef)
        ]
        if any(each.lineno == line for each in functions):
            targets = (
                [loop.target]
                if isinstance(loop, ast.For)
                else [each.target for each in loop.generators]
            )
            names |= {
                each.id
                for target in targets
                for each in ast.walk(target)
                if isinstance(each, ast.Name)
            }
    return names
