"""Statements as source: parsed, with the comments of what they replace, and with notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COMMENT = "# halfstep migrate: "
WIDTH = 80
"""Longest call on one line, without its indentation."""


def lines(source: str) -> list[cst.BaseStatement]:
    """Return the statements of a piece of source."""
    return [
        each for each in cst.parse_module(source + "\n").body if isinstance(each, cst.BaseStatement)
    ]


def call_text(head: str, arguments: Sequence[str]) -> str:
    """Return the source of a call, one argument to a line where it would be long."""
    line = f"{head}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return line
    inner = [argument.replace("\n", "\n    ") for argument in arguments]
    return "".join([f"{head}(\n", *(f"    {argument},\n" for argument in inner), ")"])


def leading(statement: cst.BaseStatement) -> tuple[cst.EmptyLine, ...]:
    """Return the empty lines and comments before a statement."""
    return tuple(getattr(statement, "leading_lines", ()))


def preceded(statement: cst.BaseStatement, before: Sequence[cst.EmptyLine]) -> cst.BaseStatement:
    """Return a statement with more lines before it, unless they are there already."""
    own = leading(statement)
    if [_text(line) for line in before] == [_text(line) for line in own[: len(before)]]:
        return statement
    return statement.with_changes(leading_lines=[*before, *own])


def _text(line: cst.EmptyLine) -> str:
    return "" if line.comment is None else line.comment.value


def with_comments_of(old: cst.BaseStatement, new: cst.BaseStatement) -> cst.BaseStatement:
    """Return `new` with the comments before and behind `old`."""
    header = getattr(getattr(old, "body", None), "header", None)
    before = list(leading(old))
    comment = header.comment if isinstance(header, cst.TrailingWhitespace) else None
    directive = comment is not None and comment.value.startswith(("# noqa", "# type:"))
    if comment is not None and not directive and type(old) is not type(new):
        before.append(cst.EmptyLine(comment=comment))
    written = preceded(new, before)
    if not isinstance(old, cst.SimpleStatementLine):
        return written
    if isinstance(written, cst.SimpleStatementLine) and not written.trailing_whitespace.comment:
        written = written.with_changes(trailing_whitespace=old.trailing_whitespace)
    return written


def noted(statement: cst.BaseStatement, reasons: Sequence[str]) -> cst.BaseStatement:
    """Return a statement with the reasons why something in it was left, each in a comment."""
    own = leading(statement)
    if any(_text(line).startswith(COMMENT) for line in own):
        return statement  # it was said when the program was migrated before
    notes = [cst.EmptyLine(comment=cst.Comment(COMMENT + reason)) for reason in reasons]
    return statement.with_changes(leading_lines=[*own, *notes])


class Suites(cst.CSTTransformer):
    """Rewrites the suites of a compound statement, and leaves those in them to the caller.

    Args:
        rewrite: Returns the new suite for an old one.
    """

    def __init__(self, rewrite: Callable[[cst.BaseSuite], cst.BaseSuite]) -> None:
        super().__init__()
        self._rewrite = rewrite

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> bool:  # noqa: N802  (libcst's)
        """Stay out of the suite."""
        del node
        return False

    def visit_SimpleStatementSuite(self, node: cst.SimpleStatementSuite) -> bool:  # noqa: N802
        """Stay out of the suite."""
        del node
        return False

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> Any:
        """Replace the suite."""
        del updated_node
        return self._rewrite(original_node)

    def leave_SimpleStatementSuite(  # noqa: N802
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> Any:
        """Replace the suite of `if x: y()`."""
        del updated_node
        return self._rewrite(original_node)


def is_pass(body: cst.BaseSuite) -> bool:
    """Tell whether a suite does nothing."""
    if not isinstance(body, cst.IndentedBlock) or len(body.body) != 1:
        return False
    only = body.body[0]
    return isinstance(only, cst.SimpleStatementLine) and isinstance(only.body[0], cst.Pass)
