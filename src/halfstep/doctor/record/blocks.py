"""Reads where a line stands in the blocks of the user's file: its statement, the loops around it.

A change that adds a line needs a place for it: before a loop, or after a statement. Here, a place
is the first line of a statement, before which the added line stands in the same block.
"""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfstep.doctor.record.sites import Mark

_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_LOOPS = ast.For | ast.AsyncFor | ast.While
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_WIDE = _LOOPS | ast.With | ast.AsyncWith
_BLOCKS = ("body", "orelse", "finalbody")


@lru_cache(maxsize=16)
def parsed(text: str) -> ast.Module | None:
    """Return the tree of a file's text; None if it is not valid."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def begins(mark: Mark | None) -> Mark | None:
    """Return the first line of the innermost statement that contains a line."""
    around = _around(mark)
    return _mark(mark, around[-1]) if mark and around else None


def ends(mark: Mark | None) -> int:
    """Return the last line of the innermost statement that contains a line; 0 if unknown."""
    around = _around(mark)
    return (around[-1].end_lineno or 0) if around else 0


def is_alone(mark: Mark) -> bool:
    """Return whether the statement of a line is the only one of its block."""
    first = begins(mark)
    blocks = _blocks_of(mark) if first else ()
    return any(len(block) == 1 and first and block[0].lineno == first[1] for block in blocks)


def loop(mark: Mark | None, names: set[str], without: Iterable[Mark] = ()) -> Mark | None:
    """Return the innermost loop around a line in its function, or the statement of the line.

    Args:
        mark: The line.
        names: Names that are bound before the loop; if it binds one, return the statement.
        without: Lines that are not in the loop; if one is, return the statement.
    """
    around = _around(mark)
    if mark is None or not around:
        return None
    loops = [each for each in around if isinstance(each, _LOOPS) and mark[1] >= each.body[0].lineno]
    inner = loops[-1] if loops else around[-1]
    return _mark(mark, inner if _is_apart(inner, mark, names, without) else around[-1])


def outermost(mark: Mark | None, names: set[str], without: Iterable[Mark] = ()) -> Mark | None:
    """Return the largest loop or "with" around a line in its function, or its statement.

    Args:
        mark: The line.
        names: Names that are bound before it.
        without: Lines that are not in it.
    """
    around = _around(mark)
    if mark is None or not around:
        return None
    without = [*without]
    wide = (each for each in around if isinstance(each, _WIDE))
    return _mark(
        mark,
        next((each for each in wide if _is_apart(each, mark, names, without)), around[-1]),
    )


def counter_around(mark: Mark) -> str:
    """Return the variable that the loop around the loop of a line counts; "" if there is none."""
    loops = [each for each in _around(mark) if isinstance(each, _LOOPS)]
    counting = loops[-2] if len(loops) > 1 and loops[-1].lineno == mark[1] else None
    if not isinstance(counting, ast.For) or not isinstance(counting.target, ast.Name):
        return ""
    return counting.target.id if "range(" in ast.unparse(counting.iter) else ""


def loops_around(mark: Mark | None) -> list[tuple[ast.AST, ast.expr]]:
    """Return the loops and comprehensions around a line in its function, outermost first.

    Args:
        mark: The line.

    Returns:
        Each with the expression that it runs over.
    """
    found: list[tuple[ast.AST, ast.expr]] = [
        (each, each.iter) for each in _around(mark) if isinstance(each, ast.For)
    ]
    nodes = nodes_at(mark[0], mark[1]) if mark else ()
    return found + [
        (each, each.generators[0].iter) for each in nodes if isinstance(each, _COMPREHENSIONS)
    ]


def passed_on(over: ast.expr) -> list[ast.expr]:
    """Return the variables, attributes and items that an expression passes on to a loop.

    Calls pass on their arguments: enumerate, zip, a progress bar.
    """
    if isinstance(over, ast.Call):
        return [one for each in over.args for one in passed_on(each)]
    return [over] if isinstance(over, ast.Name | ast.Attribute | ast.Subscript) else []


def binds(loop: ast.AST, expression: ast.expr) -> bool:
    """Return whether a loop binds a variable, attribute or item, or the variable that holds it."""
    text, base = ast.unparse(expression), expression
    while isinstance(base, ast.Attribute | ast.Subscript):
        base = base.value
    bound = [
        ast.unparse(each)
        for each in ast.walk(loop)
        if isinstance(each, ast.Name | ast.Attribute | ast.Subscript)
        and not isinstance(each.ctx, ast.Load)
    ]
    return text in bound or ast.unparse(base) in bound


def assignments_of(file: str, attribute: str) -> int:
    """Return how often a file assigns an attribute of this name."""
    tree = parsed("".join(linecache.getlines(file)))
    return sum(
        isinstance(each, ast.Attribute)
        and each.attr == attribute
        and not isinstance(each.ctx, ast.Load)
        for each in (ast.walk(tree) if tree else ())
    )


def following(mark: Mark | None) -> Mark | None:
    """Return the next statement in the block of a statement; None for the last one."""
    around = _around(mark)
    if mark is None or not around:
        return None
    for block in _blocks_of(mark):
        for one, after in pairwise(block):
            if one is around[-1]:
                return _mark(mark, after)
    return None


def call_at(file: str, position: tuple[int | None, ...]) -> ast.Call | None:
    """Return the call at a position: its first and last line, first and last column."""
    for each in nodes_at(file, position[0] or 0):
        if isinstance(each, ast.Call):
            here = each.lineno, each.end_lineno, each.col_offset, each.end_col_offset
            if here == position:
                return each
    return None


def function_at(file: str, line: int, name: str) -> ast.FunctionDef | None:
    """Return the definition of a function, by the line where it or its decorators begin."""
    for each in nodes_at(file, line):
        if isinstance(each, ast.FunctionDef) and each.name == name and _first_line(each) == line:
            return each
    return None


def nodes_at(file: str, line: int) -> tuple[ast.AST, ...]:
    """Return the nodes of a file that contain a line, outer ones first."""
    tree = parsed("".join(linecache.getlines(file)))
    return _nodes_of(tree, line) if tree else ()


@lru_cache(maxsize=512)
def _nodes_of(tree: ast.Module, line: int) -> tuple[ast.AST, ...]:
    # Only what contains the line is searched: files of libraries have 100,000 nodes.
    nodes: list[ast.AST] = []
    level: list[ast.AST] = [tree]
    while level:
        level = [
            child
            for node in level
            for child in ast.iter_child_nodes(node)
            if _first_line(child) <= line <= (getattr(child, "end_lineno", None) or line)
        ]
        nodes += level
    return tuple(nodes)


def _around(mark: Mark | None) -> list[ast.stmt]:
    """Return the statements in the function of a line that contain it, outermost first."""
    if mark is None:
        return []
    found: list[ast.stmt] = []
    for each in nodes_at(mark[0], mark[1]):
        if isinstance(each, ast.stmt) and _has(each, mark[1]):
            found = [] if isinstance(each, _SCOPES) else [*found, each]
    # An "elif" is a statement of its own, but nothing can stand before it.
    return [each for each in found if not _line(mark[0], each.lineno).startswith("elif")]


def _blocks_of(mark: Mark) -> Iterator[list[ast.stmt]]:
    """Yield the blocks around a line, outer ones first."""
    tree = parsed("".join(linecache.getlines(mark[0])))
    for each in (tree, *nodes_at(mark[0], mark[1])):
        for name in _BLOCKS:
            block = getattr(each, name, None)
            if isinstance(block, list):
                yield block


def _is_apart(statement: ast.stmt, mark: Mark, names: set[str], without: Iterable[Mark]) -> bool:
    """Return whether a statement binds none of these names and has none of these lines."""
    if any(file == mark[0] and _has(statement, line) for file, line, _ in without):
        return False
    return not any(
        isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load) and each.id in names
        for each in ast.walk(statement)
    )


def _first_line(node: ast.AST) -> int:
    """Return the line where a node or its decorators begin; 0 if it has none."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    own: int = getattr(node, "lineno", 0)
    return min([own, *(each.lineno for each in decorators)])


def _has(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _mark(mark: Mark, statement: ast.stmt) -> Mark:
    return mark[0], statement.lineno, mark[2]


def _line(file: str, number: int) -> str:
    return linecache.getline(file, number).strip()
