"""A program as text and as a syntax tree: the position of each node, and the nodes around it."""

from __future__ import annotations

import ast
import re
import warnings
from functools import cached_property
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.migrate.program.lines import split, width_of

if TYPE_CHECKING:
    from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
_PLACE = "_halfstep_place"
"""The attribute of a node with (all nodes depth-first, its index, the end index of its subtree)."""
Loop = ast.For | ast.AsyncFor | ast.While


class Source:
    """The source of one program.

    Args:
        text: The text of the program.
        name: The name of the program in error messages.

    Attributes:
        given: The text, with line feeds as line ends and without a byte order mark.
        width: One level of indentation of the program.
        lines: The lines, without line ends; each contains at most one statement.
        joints: The text between two of these lines that were one line; see `program/lines.py`.
        tree: The syntax tree of these lines.
        parent: Maps each node to its parent node.

    Raises:
        UserError: If `text` is not valid Python.
    """

    def __init__(self, text: str, name: str = "program") -> None:
        self.mark = "\ufeff" if text.startswith("\ufeff") else ""
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.given = text.removeprefix("\ufeff").replace("\r\n", "\n")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in strings of the program
                tree = ast.parse(self.given)
                self.width = width_of(self.given.split("\n"), tree)
                apart = split(self.given, tree, self.width)
                self.lines, self.joints, self._numbers = apart.lines, apart.joints, apart.numbers
                self.text = "\n".join(self.lines)
                self.tree = ast.parse(self.text) if self.joints else tree
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            raise UserError(
                f"{name}, line {line}: not Python ({getattr(error, 'msg', error)}); migrate a "
                "program that Python can read"
            ) from error
        self.parent: dict[ast.AST, ast.AST] = {}
        self._index(self.tree, [])

    def _index(self, node: ast.AST, order: list[ast.AST]) -> None:
        """Record the parent of each node and the range of its descendants, for fast lookups."""
        first = len(order)
        order.append(node)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr_context | ast.operator | ast.cmpop | ast.boolop):
                self.parent[child] = node
                self._index(child, order)
        setattr(node, _PLACE, (order, first, len(order)))

    def restored(self, text: str) -> str:
        """Return `text` with the line ends and the byte order mark of the original program."""
        return self.mark + text.replace("\n", self.newline)

    def number(self, line: int) -> int:
        """Return the number in the given text of a line of `lines`; both count from 1."""
        return self._numbers[line - 1]

    def code(self, node: ast.AST) -> str:
        """Return the source of an expression, on one line."""
        start, end = self.span(node)
        if start[0] == end[0]:
            return self.lines[start[0] - 1][start[1] : end[1]]
        return ast.unparse(node)

    def span(self, node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the start and the end of a node: line (from 1), column (from 0, in characters)."""
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.alias)
        return (
            (node.lineno, self._column(node.lineno, node.col_offset)),
            (node.end_lineno or node.lineno, self._column(node.end_lineno, node.end_col_offset)),
        )

    def _column(self, line: int | None, offset: int | None) -> int:
        text = self.lines[(line or 1) - 1]
        if text.isascii():
            return offset or 0
        return len(text.encode()[:offset].decode())

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that contain a node, innermost first."""
        while node in self.parent:
            node = self.parent[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the node itself if it is a statement, else the innermost statement around it."""
        return next(each for each in (node, *self.above(node)) if isinstance(each, ast.stmt))

    def statement_at(self, line: int) -> ast.stmt:
        """Return the innermost statement at a line (from 1), which contains code."""
        statements = (each for each in inner(self.tree) if isinstance(each, ast.stmt))
        *_, found = (each for each in statements if first_line(each) <= line <= last_line(each))
        return found

    def function(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node, or None."""
        return next((each for each in self.above(node) if isinstance(each, Function)), None)

    def functions(self, node: ast.AST) -> list[Function]:
        """Return the functions around a node, innermost first."""
        return [each for each in self.above(node) if isinstance(each, Function)]

    def class_(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the innermost class around a node, or None."""
        return next((each for each in self.above(node) if isinstance(each, ast.ClassDef)), None)

    def loop(self, node: ast.AST) -> Loop | None:
        """Return the innermost loop around a node within the same function, or None."""
        for each in self.above(node):
            if isinstance(each, Function | ast.ClassDef):
                return None
            if isinstance(each, Loop):
                return each
        return None

    def suite(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the suite that contains a statement directly."""
        return next(each for each in suites(self.parent[statement]) if statement in each)

    def way_in(self, node: ast.AST, function: ast.AST | None) -> list[ast.stmt]:
        """Return the statements around a node inside `function`, outermost first.

        A node that is a statement is the last of them.
        """
        found = []
        for each in (node, *self.above(node)):
            if each is function or isinstance(each, ast.Module):
                break
            if isinstance(each, ast.stmt):
                found.append(each)
        return found[::-1]

    def is_elif(self, statement: ast.AST) -> bool:
        """Tell whether a statement is written as an `elif`."""
        if not isinstance(statement, ast.If):
            return False
        line, column = self.span(statement)[0]
        return self.lines[line - 1].startswith("elif", column)

    def indentation(self, statement: ast.AST) -> str:
        """Return the white space at the start of a statement's first line."""
        found = re.match(r"\s*", self.lines[first_line(statement) - 1])
        return found.group() if found else ""

    @cached_property
    def inside_strings(self) -> frozenset[int]:
        """Numbers (from 1) of lines that start inside a string: they must not be reindented."""
        found: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
                found.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
        return frozenset(found)


def suites(node: ast.AST) -> list[list[ast.stmt]]:
    """Return the suites of a compound statement, in order; for any other node, an empty list."""
    found: list[list[ast.stmt]] = []
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        part = getattr(node, name, None)
        if name in ("handlers", "cases"):
            found += [each.body for each in part or ()]
        elif isinstance(part, list) and part and isinstance(part[0], ast.stmt):
            found.append(part)
    return found


def children(statement: ast.AST) -> list[ast.stmt]:
    """Return the statements directly inside a compound statement."""
    return [each for suite in suites(statement) for each in suite]


def inner(node: ast.AST, *, functions: bool = True) -> Iterator[ast.AST]:
    """Yield a node and everything in it, in depth-first order.

    Args:
        node: The first node to yield.
        functions: Whether to include functions, lambdas and classes that are defined in `node`.
    """
    place = getattr(node, _PLACE, None)
    if place is None:  # a node that does not come from a `Source`
        yield from ast.walk(node)
        return
    order, at, last = place
    while at < last:
        each = order[at]
        inside = each is not node and isinstance(each, Function | ast.ClassDef | ast.Lambda)
        if functions or not inside:
            yield each
            at += 1
        else:
            _, _, at = getattr(each, _PLACE)


def first_line(statement: ast.AST) -> int:
    """Return the first line (from 1) of a statement or of its first decorator."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    assert isinstance(statement, ast.stmt | ast.ExceptHandler)
    return min([statement.lineno, *(each.lineno for each in decorators)])


def last_line(statement: ast.stmt) -> int:
    """Return the last line (from 1) of a statement."""
    return statement.end_lineno or statement.lineno
