"""The functions and classes of a program that its calls execute."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import dotted, last_name
from halfstep.migrate.program.source import Function, inner

if TYPE_CHECKING:
    from halfstep.migrate.program.program import Program


class Callables:
    """The functions and classes of a program.

    Args:
        program: The parsed program.

    Attributes:
        graph: Its call graph.
    """

    def __init__(self, program: Program) -> None:
        self.graph = program.graph
        nodes = list(inner(program.source.tree))
        self._classes = {each.name: each for each in nodes if isinstance(each, ast.ClassDef)}
        self._instances = {
            last_name(target): self._classes[path]
            for each in nodes
            if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call)
            if (path := dotted(each.value.func)) in self._classes
            for target in each.targets
        }

    def class_of(self, call: ast.Call) -> ast.ClassDef | None:
        """Return the class of the program that a call creates an object of, or None."""
        return self.graph.class_of(call)

    def functions(self, call: ast.Call) -> list[Function]:
        """Return the functions that a call may execute, if the program contains their code.

        For a class, this is `__init__`; for an object, `__call__`.
        """
        class_ = self.class_of(call)
        if class_ is not None:
            return _methods(class_, "__init__")
        of_super = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call)
        known = [] if of_super else self.graph.called(call)
        if not known and last_name(call.func) in self._instances:
            known = _methods(self._instances[last_name(call.func)], "__call__")
        return [each for each in known if not _is_abstract(each)]

    def is_module(self, class_: ast.ClassDef) -> bool:
        """Tell whether a class derives from `torch.nn.Module`."""
        seen: set[ast.ClassDef] = set()
        found: ast.ClassDef | None = class_
        while found is not None and found not in seen:
            seen.add(found)
            bases = [dotted(each) or "" for each in found.bases]
            if any(each.rpartition(".")[2] == "Module" for each in bases):
                return True
            found = next((self._classes[each] for each in bases if each in self._classes), None)
        return False


def _methods(class_: ast.ClassDef, name: str) -> list[Function]:
    return [each for each in class_.body if isinstance(each, Function) and each.name == name]


def _is_abstract(function: Function) -> bool:
    """Tell whether a function has no code: a subclass in another file replaces it."""
    return all(
        isinstance(each, ast.Pass | ast.Raise)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in function.body
    )
