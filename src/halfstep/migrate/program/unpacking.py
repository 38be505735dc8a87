"""Writes out the arguments of a call that unpacks a dictionary which the program writes down."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import dotted
from halfstep.migrate.program.source import inner

if TYPE_CHECKING:
    from halfstep.migrate.program.source import Source


def write_out(source: Source, call: ast.Call) -> list[ast.stmt]:
    """Replace `**settings` in the syntax tree by the entries of the dictionary, if it is a literal.

    Returns:
        The assignments of dictionaries that nothing else reads.
    """
    unused: list[ast.stmt] = []
    for keyword in [each for each in call.keywords if each.arg is None]:
        value, made = keyword.value, None
        if isinstance(value, ast.Name):
            made = _only_assignment(source, value)
            value = made.value if made is not None else value
        entries = _entries(value)
        if entries is None:
            continue
        at = call.keywords.index(keyword)
        call.keywords[at : at + 1] = entries
        if made is not None:
            unused.append(made)
    return unused


def _only_assignment(source: Source, name: ast.Name) -> ast.Assign | None:
    """Return the assignment of a variable that is only assigned once and only read here."""
    scope = source.scope(name)
    uses = [each for each in inner(scope) if isinstance(each, ast.Name) and each.id == name.id]
    stored = [each for each in uses if isinstance(each.ctx, ast.Store)]
    if len(stored) != 1 or len(uses) != len(stored) + 1:
        return None
    made = source.parent[stored[0]]
    if not isinstance(made, ast.Assign) or made.targets != [stored[0]]:
        return None
    return made if source.suite(made) is source.suite(source.statement(name)) else None


def _entries(value: ast.expr) -> list[ast.keyword] | None:
    """Return the entries of `{"a": x}` or `dict(a=x)` as keywords of a call, or None."""
    if isinstance(value, ast.Dict):
        pairs = list(zip(value.keys, value.values, strict=True))
        names = [key.value if isinstance(key, ast.Constant) else None for key, _ in pairs]
        if not all(isinstance(each, str) for each in names):
            return None
        return [ast.keyword(str(name), one) for name, (_, one) in zip(names, pairs, strict=True)]
    if not isinstance(value, ast.Call) or dotted(value.func) != "dict" or value.args:
        return None
    return value.keywords if all(each.arg is not None for each in value.keywords) else None
