"""A program as text and as a syntax tree: the position of each node, and the nodes around it.

The files of a program form one source. So an analysis of a whole program reads several files as it
reads one, and only names depend on the file that they are in.
"""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.migrate.program.lines import split, width_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Function = ast.FunctionDef | ast.AsyncFunctionDef
_PLACE = "_halfstep_place"
"""The attribute of a node with (all nodes depth-first, its index, the end index of its subtree)."""
Loop = ast.For | ast.AsyncFor | ast.While


class Project(ast.AST):
    """The root of the syntax tree: the modules of all files."""

    _fields = ("modules",)
    modules: list[ast.Module]

    def __init__(self, modules: list[ast.Module]) -> None:
        super().__init__()
        self.modules = modules


@dataclass(frozen=True, slots=True, eq=False)
class File:
    """One file of a program.

    Attributes:
        name: Its path, as given.
        given: Its text, with line feeds as line ends and without a byte order mark.
        first: The number (from 1) of its first line in `Source.lines`.
        last: The number of its last line there.
        module: Its syntax tree.
        width: One level of indentation.
        mark: Its byte order mark, or "".
        newline: Its line end.
    """

    name: str
    given: str
    first: int
    last: int
    module: ast.Module
    width: str
    mark: str
    newline: str

    def restored(self, text: str) -> str:
        """Return `text` with the line ends and the byte order mark of the original file."""
        return self.mark + text.replace("\n", self.newline)


class Source:
    """The source of one program: the lines and the syntax trees of its files, one after another.

    Args:
        texts: The text of the program, or the texts of its files by path.
        name: The name of a program of one file in error messages.

    Attributes:
        files: The files, in the order of their lines.
        lines: The lines, without line ends; each contains at most one statement.
        joints: The text between two of these lines that were one line; see `program/lines.py`.
        tree: The syntax tree of these lines.
        parent: Maps each node to its parent node.

    Raises:
        UserError: If a text is not valid Python.
    """

    def __init__(self, texts: str | Mapping[str, str], name: str = "program") -> None:
        self.files: list[File] = []
        self.lines: list[str] = []
        self.joints: dict[int, str] = {}
        self._numbers: list[int] = []
        for path, text in ({name: texts} if isinstance(texts, str) else texts).items():
            self._read(path, text)
        self.text = "\n".join(self.lines)
        self.tree = Project([each.module for each in self.files])
        self._firsts = [each.first for each in self.files]
        self.parent: dict[ast.AST, ast.AST] = {}
        self._index(self.tree, [])

    def _read(self, name: str, text: str) -> None:
        """Add the lines and the syntax tree of a file."""
        given, before = text.removeprefix("\ufeff").replace("\r\n", "\n"), len(self.lines)
        tree = parsed(given, name)
        width = width_of(given.split("\n"), tree)
        apart = split(given, tree, width)
        if apart.joints or before:
            tree = parsed("\n" * before + "\n".join(apart.lines), name)
        self.lines += apart.lines
        self._numbers += apart.numbers
        self.joints |= {before + line: joint for line, joint in apart.joints.items()}
        mark, newline = text[: text.startswith("\ufeff")], "\r\n" if "\r\n" in text else "\n"
        last = len(self.lines)
        self.files.append(File(name, given, before + 1, last, tree, width, mark, newline))

    def _index(self, node: ast.AST, order: list[ast.AST]) -> None:
        """Record the parent of each node and the range of its descendants, for fast lookups."""
        first = len(order)
        order.append(node)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr_context | ast.operator | ast.cmpop | ast.boolop):
                self.parent[child] = node
                self._index(child, order)
        setattr(node, _PLACE, (order, first, len(order)))

    def file_at(self, line: int) -> File:
        """Return the file that contains a line of `lines` (from 1)."""
        return self.files[bisect_right(self._firsts, line) - 1]

    def file(self, node: ast.AST) -> File:
        """Return the file that contains a node."""
        if len(self.files) == 1:
            return self.files[0]
        around = (each for each in (node, *self.above(node)) if hasattr(each, "lineno"))
        placed = next(around, None)
        if placed is None:  # a module
            return next(each for each in self.files if each.module is node)
        return self.file_at(placed.lineno)

    def scope(self, node: ast.AST) -> Function | ast.Module:
        """Return the innermost function around a node, else its module."""
        return self.function(node) or self.file(node).module

    def number(self, line: int) -> int:
        """Return the number in its file of a line of `lines`; both count from 1."""
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


def parsed(text: str, name: str) -> ast.Module:
    """Parse a file.

    Raises:
        UserError: If it is not valid Python; the error names the file and the line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in strings of the program
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UserError(
            f"{name}, line {line}: not Python ({getattr(error, 'msg', error)}); migrate a "
            "program that Python can read"
        ) from error


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
