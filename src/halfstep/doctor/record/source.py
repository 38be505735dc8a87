"""Reads statements of the user's program, and changes their arguments for a suggestion."""

from __future__ import annotations

import ast
import difflib
import io
import linecache
import re
import textwrap
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.record.sites import Mark

LINES = 12
_EPS = re.compile(r"(.*_)?eps(ilon)?\d*(_.*)?", re.IGNORECASE)


def other_lines_with_eps(mark: Mark | None, eps: float) -> tuple[int, ...]:
    """Return the other lines of a function that contain the same eps as one of its lines.

    An eps is the number itself, or a variable or attribute with a name such as `eps` or `adam_eps`.

    Args:
        mark: The line.
        eps: The value of the eps; 0 if it is a tensor.

    Returns:
        Numbers of the lines, from 1, without that of the mark.
    """
    if mark is None:
        return ()
    try:
        nodes = [*ast.walk(ast.parse("".join(linecache.getlines(mark[0]))))]
    except (SyntaxError, ValueError, RecursionError):
        return ()
    around = [
        each
        for each in nodes
        if isinstance(each, ast.FunctionDef) and each.lineno <= mark[1] <= (each.end_lineno or 0)
    ]
    if not around:
        return ()
    lines: dict[str, set[int]] = {}
    for each in chain.from_iterable(map(ast.walk, around[-1].body)):
        name = each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "")
        is_number = eps and isinstance(each, ast.Constant) and each.value == eps
        if is_number or _EPS.fullmatch(name):
            assert isinstance(each, ast.expr)
            lines.setdefault(ast.unparse(each), set()).add(each.lineno)
    same = [numbers for numbers in lines.values() if mark[1] in numbers]
    return tuple(sorted(set().union(*same) - {mark[1]}))


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
    text = "".join(linecache.getlines(mark[0]))
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError):
        return None
    inside = [
        each
        for node in nodes
        if isinstance(node, ast.stmt)
        and not hasattr(node, "body")
        and node.lineno <= mark[1] <= (node.end_lineno or 0)
        for each in ast.walk(node)
    ]
    names = {each.id for each in inside if isinstance(each, ast.Name)}
    names |= {each.attr for each in inside if isinstance(each, ast.Attribute)}
    found = [each for each in inside if _is_number(each, number)] or [
        value
        for node in _visible(nodes, mark[1])
        for name, value in _set_by(node)
        if name in names
        if value is not None and _is_number(value, number)
    ]
    if len(found) != 1:
        return None
    (constant,) = found
    assert isinstance(constant, ast.expr)
    changed = _replaced(text, constant, by)
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
            is_mine = getattr(called, "id", called) in names
            hidden |= set() if is_mine else {*node.keywords}
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


def statement(mark: Mark | None) -> str:
    """Return the statement that a line belongs to, without indentation; "" if unknown.

    If the statement has a body or more than a dozen lines, return only the line.
    """
    if mark is None:
        return ""
    lines = linecache.getlines(mark[0])
    first = last = mark[1]
    try:
        nodes = ast.walk(ast.parse("".join(lines)))
    except (SyntaxError, ValueError, RecursionError):
        nodes = iter(())
    for node in nodes:
        if not isinstance(node, ast.stmt) or hasattr(node, "body"):
            continue
        end = node.end_lineno or node.lineno
        if node.lineno <= mark[1] <= end < node.lineno + LINES:
            first, last = node.lineno, end
    return textwrap.dedent("".join(lines[first - 1 : last])).strip()


def with_argument(
    text: str, function: str, name: str, value: str, *, position: int | None = None
) -> str | None:
    """Return a statement in which the call of a function has the given argument.

    Args:
        text: The statement.
        function: The last part of the function's name.
        name: Name of the argument.
        value: Value of the argument, as source code.
        position: Index of the argument among positional arguments, from 0; None if it is given by
            name only.

    Returns:
        The changed statement; None if the statement does not contain exactly one such call, or if
        the call has no arguments or hides some of them in `*args` or `**kwargs`.
    """
    try:
        found = [each for each in ast.walk(ast.parse(text)) if _calls(each, function)]
    except (SyntaxError, ValueError, RecursionError):
        return None
    if len(found) != 1 or not isinstance(found[0], ast.Call):
        return None
    call = found[0]
    given = [*call.args, *[each.value for each in call.keywords]]
    hidden = any(isinstance(each, ast.Starred) for each in call.args) or any(
        each.arg is None for each in call.keywords
    )
    known = next((each.value for each in call.keywords if each.arg == name), None)
    if known is None and position is not None and len(call.args) > position:
        known = call.args[position]
    if hidden or not given:
        return None
    if known is not None:
        return _replaced(text, known, value)
    last = max(given, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0))
    return _replaced(text, last, f"{ast.get_source_segment(text, last)}, {name}={value}")


def difference(before: str, after: str) -> tuple[str, ...]:
    """Return the difference of two texts, as lines: "- old", "+ new", "  unchanged"."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return tuple(each for each in lines if not each.startswith("?"))


def _calls(node: ast.AST, function: str) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
    return name == function or (isinstance(name, ast.Name) and name.id == function)


def _replaced(text: str, node: ast.expr, by: str) -> str:
    # Only "\n" ends a line for `ast`; `splitlines` would split at other characters, too.
    lines = [each.encode() for each in io.StringIO(text, newline="\n")]
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = b"".join([*lines[:first], lines[first][: node.col_offset]])
    after = b"".join([lines[last][node.end_col_offset :], *lines[last + 1 :]])
    return (before + by.encode() + after).decode()
