"""Checks that a changed file is valid, and that added lines use only names that are bound there."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from halfstep.doctor.record.blocks import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SCOPES = _FUNCTIONS | ast.ClassDef
_NAMES = {*dir(builtins), "__file__", "__name__"}


def unbound(text: str, lines: set[int]) -> set[str] | None:
    """Return the names that some lines of a program read, and that are not bound there.

    A name of the same function, or of the file for a line outside of functions, must be bound at
    the line or above.

    Args:
        text: The text of the file.
        lines: Numbers of the lines, from 1.

    Returns:
        The names; None if the text is not valid.
    """
    tree = parsed(text)
    if tree is None:
        return None
    if any(isinstance(each, ast.alias) and each.name == "*" for each in ast.walk(tree)):
        return set()  # Any name may come from there.
    return {name for name, line in _unbound(tree, ()) if line in lines}


def _unbound(scope: ast.AST, outer: tuple[dict[str, int], ...]) -> Iterator[tuple[str, int]]:
    own = _bound(scope)
    seen = set(_NAMES).union(*outer)
    for node in inside(scope):
        if isinstance(node, _SCOPES):
            # Code of a function runs later; a name of a class is not one of its functions.
            visible = outer if isinstance(scope, ast.ClassDef) else (*outer, own)
            yield from _unbound(node, visible)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            first = own.get(node.id)
            if node.id not in seen and (first is None or first > node.lineno):
                yield node.id, node.lineno


def inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, and the scopes directly in it, without what is inside these."""
    waiting = [*ast.iter_child_nodes(scope)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)


def _bound(scope: ast.AST) -> dict[str, int]:
    """Return the names that a scope binds, with the first line in which each can be read."""
    found: dict[str, int] = {}
    nodes = [*inside(scope)]
    # The value of an assignment is computed before its target is bound.
    late = {
        id(name): 1 + (node.end_lineno or 0)
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name in ast.walk(target)
    }

    def bind(name: str, line: int) -> None:
        found[name] = min(line, found.get(name, line))

    for node in nodes:
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bind(node.id, late.get(id(node), line))
        elif isinstance(node, ast.arg):
            bind(node.arg, 0)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bind(node.name, line)
        elif isinstance(node, ast.alias):
            bind((node.asname or node.name).partition(".")[0], line)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            bind(node.name, line)
        elif isinstance(node, ast.Global):
            for name in node.names:
                bind(name, 0)
    return found
