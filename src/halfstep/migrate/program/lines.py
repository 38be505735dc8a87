"""One statement per line: splits lines such as `a(); b()` and `if x: a()`, and joins them again.

All other parts of migrate read and change the split program. So an edit never begins or ends in the
middle of a line, and the order of the lines is the order of the statements.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass
class Split:
    """A program with one statement per line.

    Attributes:
        lines: The lines, without line ends.
        numbers: For each of them, the line number (from 1) in the program as it was.
        joints: Maps the number (from 1) of each line that was part of the line before it to the
            text that separated the two, such as "; " or " ".
    """

    lines: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    joints: dict[int, str] = field(default_factory=dict)


def split(text: str, tree: ast.Module, width: str) -> Split:
    """Put each statement of a program on a line of its own.

    Args:
        text: The text of the program, with line feeds as line ends.
        tree: Its syntax tree.
        width: One level of indentation.
    """
    done, place, indent = Split(), 0, ""
    for start, stop, following in [*_breaks(text, tree, width), (len(text), len(text), "")]:
        number = 1 + text.count("\n", 0, place)
        head, *rest = text[place:start].split("\n")
        done.lines += [indent + head, *rest]
        done.numbers += range(number, number + 1 + len(rest))
        if start < len(text):
            done.joints[len(done.lines) + 1] = text[start:stop]
        place, indent = stop, following
    return done


def _breaks(text: str, tree: ast.Module, width: str) -> list[tuple[int, int, str]]:
    """Return each gap to break: its start and end (from 0), and the indentation after it."""
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]

    def place(line: int | None, column: int | None) -> int:
        assert line is not None
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    found = []
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            suite = getattr(node, name, None)
            indent, last = "", None
            for statement in suite if isinstance(suite, list) else []:
                assert isinstance(statement, ast.stmt)
                stop = place(statement.lineno, statement.col_offset)
                start = _gap(text, stop)
                alone = start == 0 or text[start - 1] == "\n"
                if last is None:
                    indent = _margin(lines, statement if alone else node) + width * (not alone)
                if not alone:
                    found.append((start if last is None else last, stop, indent))
                last = place(statement.end_lineno, statement.end_col_offset)
    return sorted(found)


def _gap(text: str, stop: int) -> int:
    """Return where the white space before `stop` begins; it may contain continued lines."""
    while stop and (text[stop - 1] in " \t\f" or text.endswith("\\\n", 0, stop)):
        stop -= 1 if text[stop - 1] != "\n" else 2
    return stop


def width_of(lines: list[str], tree: ast.Module) -> str:
    """Return one level of indentation of a program; four spaces if it has no indented line."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and not isinstance(node, ast.Module):
            outer, inner = _margin(lines, node), _margin(lines, body[0])
            continued = lines[body[0].lineno - 2].endswith("\\")
            if len(outer) < len(inner) == body[0].col_offset and not continued:
                return inner[len(outer) :]
    return "    "


def _margin(lines: list[str], node: ast.AST) -> str:
    """Return the white space at the start of the first line of a node."""
    first = node.pattern if isinstance(node, ast.match_case) else node
    line = lines[getattr(first, "lineno", 1) - 1]
    return line[: len(line) - len(line.lstrip())]
