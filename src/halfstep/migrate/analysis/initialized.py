"""Whether amp has been initialized when a statement or a method runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.migrate.program.names import calls, last_name
from halfstep.migrate.program.source import Function

if TYPE_CHECKING:
    import ast

    from halfstep.migrate.program.call_graph import CallGraph
    from halfstep.migrate.program.program import Program


def precedes_initialize(program: Program, statement: ast.stmt) -> bool:
    """Tell whether a statement runs before amp is initialized in the same function."""
    function = program.source.function(statement)
    lines = [
        each.statement.lineno
        for each in program.initializes
        if each.optimizers and each.function is function
    ]
    return bool(lines) and statement.lineno < min(lines)


def follows_initialize(program: Program, graph: CallGraph, method: Function) -> bool:
    """Tell whether a method of a class that trains runs after amp has been initialized."""
    if not _has_self(method):
        return False
    training = set(program.training)
    if any(
        not training.isdisjoint(reached) and method in reached
        for reached in map(graph.reached, [[each] for each in _methods_beside(program, method)])
    ):
        return True
    class_ = program.source.class_(method)
    homes = {each.function for each in program.initializes if each.function is not None}
    own = {home for home in homes if program.source.class_(home) is class_}
    assert class_ is not None
    first = {each for each in class_.body if isinstance(each, Function) and each.name == "__init__"}
    if not own or own & _called_from(class_, first):
        return True
    return method in _called_from(class_, own)


def _methods_beside(program: Program, method: Function) -> list[Function]:
    class_ = program.source.class_(method)
    return [each for each in getattr(class_, "body", ()) if isinstance(each, Function)]


def _called_from(class_: ast.ClassDef, methods: set[Function]) -> set[Function]:
    """Return the given methods of a class, and the methods that they call, directly or not."""
    by_name = {each.name: each for each in class_.body if isinstance(each, Function)}
    found, new = set(methods), set(methods)
    while new:
        names = {last_name(call.func) for each in new for call in calls(each)}
        new = {by_name[name] for name in names & by_name.keys()} - found
        found |= new
    return found


def _has_self(function: Function) -> bool:
    return bool(function.args.args) and function.args.args[0].arg == "self"
