"""Finds the number that a line of the user's program uses, and changes it for a suggestion."""

from __future__ import annotations

import ast
import linecache
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.doctor.record.sites import Mark


def line_with_other_number(mark: Mark, number: float, by: str) -> tuple[str, str] | None:
    """Return the line that contains a number of a statement, before and after a change of it.

    The number is in the statement, or sets a variable, an attribute or an argument in it.

    Args:
        mark: A line of the statement.
        number: The number; 0 if unknown.
        by: The new number as source code, with its sign.

    Returns:
        The two lines, without indentation; None unless the number is in exactly one place.
    """
    return _line_with(mark, lambda node: _is_number(node, number), by)


def line_with_number_beyond(mark: Mark, limit: float, by: str) -> tuple[str, str] | None:
    """Return the line that contains a number of a statement below a limit, before and after.

    The number is in the statement, or sets a variable, an attribute or an argument in it.

    Args:
        mark: A line of the statement.
        limit: The limit, below 0.
        by: The new number as source code, with its sign.

    Returns:
        The two lines, without indentation; None unless there is exactly one such number.
    """

    def is_beyond(node: ast.AST | None) -> bool:
        is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        value = getattr(getattr(node, "operand", None), "value", None) if is_negative else None
        return isinstance(value, int | float) and -value < limit

    return _line_with(mark, is_beyond, by)


def _line_with(
    mark: Mark, is_sought: Callable[[ast.AST | None], bool], by: str
) -> tuple[str, str] | None:
    text = "".join(linecache.getlines(mark[0]))
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError):
        return None
    inside = [
        each
        for node in nodes
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and _covers(node, mark[1])
        for each in ast.walk(node)
    ]
    names = {each.id for each in inside if isinstance(each, ast.Name)}
    names |= {each.attr for each in inside if isinstance(each, ast.Attribute)}
    found = [each for each in inside if is_sought(each)] or [
        value
        for node in _visible(nodes, mark[1])
        for name, value in _set_by(node)
        if name in names
        if value is not None and is_sought(value)
    ]
    if len(found) != 1:
        return None
    (constant,) = found
    assert isinstance(constant, ast.expr)
    changed = replaced(text, constant, by)
    first = constant.lineno - 1
    return text.split("\n")[first].strip(), changed.split("\n")[first].strip()


def _visible(nodes: list[ast.AST], line: int) -> Iterator[ast.AST]:
    """Yield the nodes that may set a name in a line, without those of unrelated functions."""
    blocks = [
        each for each in nodes if isinstance(each, ast.FunctionDef | ast.ClassDef | ast.Lambda)
    ]
    around = [each for each in blocks if _covers(each, line)]
    names = {each.name for each in around if not isinstance(each, ast.Lambda)}
    hidden: set[ast.AST] = set()
    for block in blocks:
        is_method = any(
            isinstance(each, ast.ClassDef) and _covers(each, block.lineno) for each in around
        )
        if block not in around and not is_method:
            hidden |= {*ast.walk(block)}
    for node in nodes:
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            if getattr(called, "id", called) not in names:
                hidden |= {*node.keywords}
    yield from (each for each in nodes if each not in hidden)


def _covers(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _is_number(node: ast.AST | None, value: float) -> bool:
    if value < 0:
        is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        return is_negative and _is_number(getattr(node, "operand", None), -value)
    return value > 0 and isinstance(node, ast.Constant) and node.value == value


def _set_by(node: ast.AST) -> list[tuple[str, ast.expr | None]]:
    """Return the names that a node sets, each with its value: "eps", 1e-8."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [getattr(each, "attr", getattr(each, "id", "")) for each in targets]
        return [(each, node.value) for each in names]
    if isinstance(node, ast.keyword):
        return [(node.arg or "", node.value)]
    if isinstance(node, ast.arguments):
        positional = [*node.posonlyargs, *node.args]
        given = [*zip(reversed(positional), reversed(node.defaults), strict=False)]
        given += [
            (each, value)
            for each, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)
            if value is not None
        ]
        return [(each.arg, value) for each, value in given]
    return []
