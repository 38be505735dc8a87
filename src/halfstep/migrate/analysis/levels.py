"""Which opt_levels an expression may have, as far as the program limits them.

Most programs take the level from the command line, where `choices` may limit it, or choose between
two levels in an `if`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import argument, calls, dotted, elements, last_name
from halfstep.migrate.program.source import inner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.migrate.program.source import Source

LEVELS = frozenset({"O0", "O1", "O2", "O3"})


def possible_levels(source: Source, level: ast.expr | None, at: ast.AST) -> frozenset[str]:
    """Return the levels that an expression may have; all levels if nothing is known.

    Args:
        source: The source of the program.
        level: The expression; None for the default, O1.
        at: The node that uses the expression; the tests around it may limit the levels.
    """
    found = frozenset({"O1"}) if level is None else _values(source, level, at)
    for around in source.above(at):
        if level is not None and isinstance(around, ast.If) and at not in inner_of(around.orelse):
            found &= _asked_for(source, around.test, source.code(level)) or LEVELS
    return found & LEVELS or LEVELS


def inner_of(statements: Iterable[ast.stmt]) -> set[ast.AST]:
    """Return all nodes in some statements."""
    return {node for each in statements for node in inner(each)}


def _values(source: Source, node: ast.expr, at: ast.AST) -> frozenset[str]:
    match node:
        case ast.Constant(value=str(value)):
            return frozenset({value})
        case ast.IfExp(body=body, orelse=orelse):
            return _values(source, body, at) | _values(source, orelse, at)
        case ast.Name(id=name):
            return _assigned(source, name, at)
        case ast.Attribute(attr=name):
            return _chosen(source, name)
    return LEVELS


def _assigned(source: Source, name: str, at: ast.AST) -> frozenset[str]:
    """Return the levels that are assigned to a variable; all levels if a value is not known."""
    function, module = source.function(at), source.file(at).module
    if function is not None:
        names = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        if name in names:
            return LEVELS
    for scope in filter(None, (function, module)):
        bound = [
            node
            for node in inner(scope, functions=scope is not module)
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        ]
        if bound:
            found: frozenset[str] = frozenset()
            for each in bound:
                parent = source.parent[each]
                if not isinstance(parent, ast.Assign) or name in _names(parent.value):
                    return LEVELS
                found |= _values(source, parent.value, parent)
            return found
    return LEVELS


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _chosen(source: Source, name: str) -> frozenset[str]:
    """Return the choices of a command-line argument, and the values assigned to it elsewhere."""
    found: set[str] = set()
    for call in calls(source.tree):
        if last_name(call.func) == "add_argument" and name in _destinations(call):
            choices, default = argument(call, "choices"), argument(call, "default")
            given = [*(elements(choices) if choices else ()), *([default] if default else ())]
            if choices is None or not all(isinstance(each, ast.Constant) for each in given):
                return LEVELS
            found |= {str(each.value) for each in given if isinstance(each, ast.Constant)}
    if not found:
        return LEVELS
    for node in inner(source.tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr == name:
                    found |= _values(source, node.value, node)
    return frozenset(found)


def _destinations(call: ast.Call) -> set[str]:
    dest = argument(call, "dest")
    if isinstance(dest, ast.Constant):
        return {str(dest.value)}
    flags = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
    return {each.lstrip("-").replace("-", "_") for each in flags}


def _asked_for(source: Source, test: ast.expr, level: str) -> frozenset[str]:
    """Return the levels for which a test is true; empty if it does not test the level."""
    match test:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=str(value))]):
            asked = {value}
        case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.List() | ast.Tuple() as each]):
            asked = {str(one.value) for one in each.elts if isinstance(one, ast.Constant)}
        case ast.Compare(
            left=left, ops=[ast.NotEq()], comparators=[ast.Constant(value=str(value))]
        ):
            asked = set(LEVELS - {value})
        case ast.BoolOp(op=ast.And(), values=values):
            found = [_asked_for(source, each, level) for each in values]
            return next((each for each in found if each), frozenset())
        case _:
            return frozenset()
    return frozenset(asked) if dotted(left) and source.code(left) == level else frozenset()
