"""Chooses where the engine or scaler is stored, so that all code that used amp can reach it.

Amp was global. The engine or scaler is a local variable if only the function that initializes amp
uses it, an attribute of `self` if only methods of one class use it, and else a global variable.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import fresh

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.migrate.program.program import Program
    from halfstep.migrate.program.source import Function


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the engine or scaler is stored.

    Attributes:
        object: The expression for it, such as `engine` or `self.engine`.
        global_in: Functions that assign it and have to declare it global.
    """

    object: str
    global_in: tuple[Function, ...] = ()


def place(program: Program, name: str, uses: Iterable[ast.AST]) -> Placement:
    """Choose where the engine or scaler is stored.

    Args:
        program: The parsed program.
        name: Its name; a variant is used if the program already has this name.
        uses: Nodes in which it will be used.
    """
    name = fresh(name, program.names)
    source = program.source
    homes = list(dict.fromkeys(each.function for each in program.initializes if each.optimizers))
    functions = [home for home in homes if home is not None]
    if len(functions) < len(homes):
        return Placement(name, tuple(functions))  # assigned at the top level of the module
    users = list(uses)
    if len(functions) == 1 and all(functions[0] in source.above(each) for each in users):
        return Placement(name)
    classes = {_class_of(program, each) for each in (*functions, *users)}
    if len(classes) == 1 and None not in classes:
        return Placement(f"self.{name}")
    return Placement(name, tuple(functions))


def _class_of(program: Program, node: ast.AST) -> ast.ClassDef | None:
    """Return the class of the method that a node is or is in; None if it is in no method."""
    source = program.source
    around = [node, *source.above(node)]
    methods = [each for each in around if isinstance(each, ast.FunctionDef)]
    if not methods or not methods[-1].args.args or methods[-1].args.args[0].arg != "self":
        return None
    parent = source.parent[methods[-1]]
    return parent if isinstance(parent, ast.ClassDef) else None
