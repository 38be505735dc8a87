"""Writes the new text of a program: changed statements between unchanged lines.

Unchanged code is copied from the source line by line, so that the author's comments, blank lines,
quotes and indentation are kept. A line with several statements stays one line if none of them has
changed.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from halfstep.migrate.program.source import first_line, last_line, suites

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfstep.migrate.program.source import File, Source

COMMENT = "# halfstep migrate: "
WIDTH = 80
"""The largest length of a call on one line, in characters, without its indentation."""


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive statements that are moved into a new `with` block.

    The first statement is the key of the region in `Edits.regions`.

    Attributes:
        head: The line of the `with`.
        last: The last statement.
        tail: Lines that are added at the end of the block.
    """

    head: str
    last: ast.stmt
    tail: tuple[str, ...] = ()


Piece = str | list[ast.stmt]
"""A part of the replacement of a statement: new lines, or statements of the program."""


@dataclass
class Edits:
    """The changes to a program.

    Attributes:
        replaced: Maps a statement to its replacement; an empty list removes the statement.
        before: Maps a statement to new lines above it.
        after: Maps a statement to new lines below it.
        regions: Maps the first statement of each region to the region.
        expressions: Maps an expression to its new source.
        notes: Maps a statement to the texts of the comments above it.
    """

    replaced: dict[ast.stmt, list[Piece]] = field(default_factory=dict)
    before: dict[ast.stmt, list[str]] = field(default_factory=lambda: defaultdict(list))
    after: dict[ast.stmt, list[str]] = field(default_factory=lambda: defaultdict(list))
    regions: dict[ast.stmt, Region] = field(default_factory=dict)
    expressions: dict[ast.AST, str] = field(default_factory=dict)
    notes: dict[ast.stmt, list[str]] = field(default_factory=lambda: defaultdict(list))


def call_text(head: str, arguments: Sequence[str]) -> str:
    """Return the source of a call; one argument per line if it is longer than `WIDTH`."""
    line = f"{head}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return line
    inner = [argument.replace("\n", "\n    ") for argument in arguments]
    return "".join([f"{head}(\n", *(f"    {argument},\n" for argument in inner), ")"])


def rendered(source: Source, edits: Edits) -> str:
    """Return the text of a program with all edits applied."""
    return "\n".join(line.text for lines in rendered_lines(source, edits) for line in lines)


def rendered_lines(source: Source, edits: Edits) -> list[list[Line]]:
    """Return the lines of each file of a program with all edits applied."""
    renderer = _Renderer(source, edits)
    return [renderer.file(each) for each in source.files]


@dataclass(frozen=True, slots=True)
class Shift:
    """A change of indentation: removes `cut` characters of white space, then prepends `add`."""

    cut: int = 0
    add: str = ""

    def of(self, line: str) -> str:
        """Return a line with its new indentation."""
        if not line.strip():
            return line if not (self.cut or self.add) else ""
        kept = line[self.cut :] if line[: self.cut].isspace() or not self.cut else line.lstrip()
        return self.add + kept

    def deeper(self, width: str) -> Shift:
        """Return the shift for a block that is indented by `width` more."""
        return Shift(self.cut, self.add + width)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the new text.

    Attributes:
        text: The line, without its end.
        number: The number (from 1) of the line of the source that it is a copy of, or that the
            statement of a new line begins at.
        shift: How the indentation of a copy has changed; None if the line is new.
    """

    text: str
    number: int
    shift: Shift | None = None

    @property
    def says(self) -> bool:
        """Whether the line contains code: it is neither blank nor only a comment."""
        return bool(self.text.strip()) and not self.text.strip().startswith("#")


class _Renderer:
    def __init__(self, source: Source, edits: Edits) -> None:
        self.source = source
        self.edits = edits
        self.spans = sorted((*source.span(node), text) for node, text in edits.expressions.items())
        self.notes: dict[ast.stmt, list[str]] = defaultdict(list)
        for statement, reasons in edits.notes.items():
            self.notes[self._anchor(statement)] += reasons
        self.changed: set[ast.AST] = set()
        for part in (edits.replaced, edits.before, edits.after, edits.regions, self.notes):
            for each in part:
                self.changed.update((each, *source.above(each)))

    def file(self, file: File) -> list[Line]:
        """Return the lines of a file."""
        self.width = file.width
        return self._joined(self._lines(file.first, file.last, file.module.body, Shift()))

    def _joined(self, lines: list[Line]) -> list[Line]:
        """Join the copies of the lines that were one line before it was split into statements."""
        done: list[Line] = []
        place, joints = 0, self.source.joints
        while place < len(lines):
            first, count = lines[place], 1
            text, number, shift = first.text, first.number, first.shift
            while shift is not None and number + count in joints and place + count < len(lines):
                part = lines[place + count]
                if (part.number, part.shift) != (number + count, shift):
                    break
                text += joints[part.number] + part.text.lstrip()
                count += 1
            whole = number + count not in joints
            done += [Line(text, number, shift)] if whole else lines[place : place + count]
            place += count
        return done

    def _anchor(self, statement: ast.stmt) -> ast.stmt:
        """Return the statement above which the comments of `statement` are written.

        A comment cannot precede an `elif`, and does not split the line that contains `statement`.
        """
        if first_line(statement) in self.source.joints or self.source.is_elif(statement):
            suite = self.source.suite(statement)
            if statement is not suite[0]:
                return self._anchor(suite[suite.index(statement) - 1])
            return self._anchor(self.source.statement(self.source.parent[statement]))
        return statement

    def _lines(
        self,
        first: int,
        last: int,
        body: Sequence[ast.stmt],
        shift: Shift,
        under: ast.stmt | None = None,
    ) -> list[Line]:
        """Render the lines `first` to `last` (from 1), which contain the statements of `body`.

        The `with` of the region that begins at `under` has been written already.
        """
        done: list[Line] = []
        place, at = first, 0
        while at < len(body):
            group = [body[at]]
            region = self.edits.regions.get(body[at]) if body[at] is not under else None
            if region is not None:
                group = list(body[at : body.index(region.last) + 1])
            at += len(group)
            if self.changed.isdisjoint(group):
                continue
            done += self._raw(place, first_line(group[0]) - 1, shift)
            place = last_line(group[-1]) + 1
            if region is not None:
                done += self._region(region, group, shift)
                continue
            written = self._statement(group[0], shift)
            done += written
            if not written and (not done or not done[-1].text.strip()):
                place = self._past_blank_lines(place, last)
        return done + self._raw(place, last, shift)

    def _past_blank_lines(self, place: int, last: int) -> int:
        while place < last and not self.source.lines[place - 1].strip():
            place += 1
        return place

    def _region(self, region: Region, body: Sequence[ast.stmt], shift: Shift) -> list[Line]:
        indent = self._indent(body[0], shift)
        width = self.width
        notes = self._noted(body[0], indent)
        first, last = first_line(body[0]), last_line(body[-1])
        inside = self._lines(first, last, body, shift.deeper(width), under=body[0])
        inside += self._new(region.tail, indent + width, body[-1])
        if not any(line.says for line in inside):
            return notes + inside
        return [*notes, *self._new([region.head], indent, body[0]), *inside]

    def _indent(self, statement: ast.stmt, shift: Shift) -> str:
        return shift.of(self.source.indentation(statement) + "x")[:-1]

    def _statement(self, statement: ast.stmt, shift: Shift) -> list[Line]:
        indent = self._indent(statement, shift)
        if statement in self.edits.replaced:
            written = self._replaced(statement, indent)
        elif suites(statement):
            written = self._compound(statement, shift)
        else:
            written = self._raw(first_line(statement), last_line(statement), shift)
        before = self._new(self.edits.before.get(statement, ()), indent, statement)
        after = self._new(self.edits.after.get(statement, ()), indent, statement)
        return [*self._noted(statement, indent), *before, *written, *after]

    def _noted(self, statement: ast.stmt, indent: str) -> list[Line]:
        """Return the comments to add above a statement, except those already there.

        The notes are removed from `self.notes`, so that no comment is written twice.
        """
        there = set()
        line = first_line(statement) - 2
        while line >= 0 and self.source.lines[line].strip().startswith("#"):
            there.add(self.source.lines[line].strip())
            line -= 1
        notes = [COMMENT + reason for reason in dict.fromkeys(self.notes.pop(statement, ()))]
        return self._new([note for note in notes if note not in there], indent, statement)

    def _new(self, texts: Iterable[str], indent: str, statement: ast.stmt) -> list[Line]:
        """Return new lines, with their four-space levels changed to the program's indentation."""
        done = []
        for line in (line for text in texts for line in text.split("\n")):
            levels = (len(line) - len(line.lstrip(" "))) // 4
            moved = indent + self.width * levels + line[4 * levels :] if line else ""
            done.append(Line(moved, first_line(statement)))
        return done

    def _replaced(self, statement: ast.stmt, indent: str) -> list[Line]:
        if self.source.is_elif(statement):
            inner = self._pieces(statement, indent + self.width)
            head = self._new(["else:"], indent, statement)
            return [*head, *inner] if any(line.says for line in inner) else []
        return self._pieces(statement, indent)

    def _pieces(self, statement: ast.stmt, indent: str) -> list[Line]:
        done: list[Line] = []
        kept: list[tuple[int, int]] = []
        for piece in self.edits.replaced[statement]:
            if isinstance(piece, str):
                done += self._new([piece], indent, statement)
            elif piece:
                first, last = self._with_comments(piece[0], statement), last_line(piece[-1])
                kept.append((first, last))
                shift = Shift(len(self.source.indentation(piece[0])), indent)
                done += self._lines(first, last, piece, shift)
        return self._with_lost_comments(statement, kept, done, indent)

    def _with_comments(self, statement: ast.stmt, within: ast.stmt) -> int:
        """Return the line (from 1) at which the comments directly above a statement begin."""
        line = first_line(statement)
        while line - 1 > first_line(within) and self.source.lines[line - 2].strip()[:1] == "#":
            line -= 1
        return line

    def _with_lost_comments(
        self, statement: ast.stmt, kept: list[tuple[int, int]], done: list[Line], indent: str
    ) -> list[Line]:
        """Keep the comments of removed lines.

        If one new line replaces one old line, the comment follows it on the same line. Otherwise
        the comments go above the new lines, except directives such as `# noqa`.
        """
        lines = range(first_line(statement), last_line(statement) + 1)
        lost = [
            self.comments[line]
            for line in lines
            if line in self.comments and not any(a <= line <= b for a, b in kept)
        ]
        alone = len({self.source.number(line) for line in lines}) == len(done) == 1
        if alone and lost:
            return [Line(f"{done[0].text}  {lost[0]}", done[0].number)]
        directives = ("# noqa", "# type:", "# pylint", "# noinspection")
        comments = [each for each in lost if not each.startswith(directives)]
        return [*self._new(comments, indent, statement), *done]

    @cached_property
    def comments(self) -> dict[int, str]:
        """The comment of each line that has one, by line number (from 1)."""
        tokens = tokenize.generate_tokens(io.StringIO(self.source.text).readline)
        return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}

    def _compound(self, statement: ast.stmt, shift: Shift) -> list[Line]:
        """Render a compound statement, suite by suite; leave out sides of an `if` without code."""
        done: list[Line] = []
        place, empty = first_line(statement), False
        for suite in suites(statement):
            first, last = first_line(suite[0]), last_line(suite[-1])
            alternative = isinstance(statement, ast.If) and suite is statement.orelse
            if self.changed.isdisjoint(suite) and not empty:
                continue
            written = self._lines(first, last, suite, shift)
            if any(line.says for line in written):
                head = self._raw(place, first - 1, shift)
                if empty and isinstance(statement, ast.If):
                    test = f"if {negated(statement.test, self._code(statement.test))}:"
                    head = self._new([test], self._indent(statement, shift), statement)
                    empty = False
                done += [*head, *written]
            elif alternative and not self.source.is_elif(suite[0]):
                end = last_line(statement.body[-1]) if isinstance(statement, ast.If) else place
                done += [*self._raw(place, end, shift), *written]  # without its `else:`
            elif isinstance(statement, ast.If) and self._has_else(statement):
                done, empty = [*done, *written], True
            else:
                done += self._raw(place, first - 1, shift) + written
                if not self.source.is_elif(suite[0]):
                    done += self._new(["pass"], self._indent(suite[0], shift), suite[0])
            place = last + 1
        if empty:  # the other side has no code either, but the test may do something
            assert isinstance(statement, ast.If)
            test = f"if {self._code(statement.test)}:\n    pass"
            done += self._new([test], self._indent(statement, shift), statement)
        return done + self._raw(place, last_line(statement), shift)

    def _code(self, node: ast.AST) -> str:
        return changed_code(self.source, node, self.edits.expressions)

    def _has_else(self, statement: ast.If) -> bool:
        """Tell whether an `if`, which is no `elif`, has an `else` with code."""
        orelse = statement.orelse
        if not orelse or self.source.is_elif(orelse[0]) or self.source.is_elif(statement):
            return False
        written = [self.edits.replaced.get(each, [""]) for each in orelse]
        return any(part != [] for part in written)

    def _raw(self, first: int, last: int, shift: Shift) -> list[Line]:
        """Copy lines with their changed expressions."""
        entries = [
            (line, number, number not in self.source.inside_strings)
            for number, line in enumerate(self.source.lines[first - 1 : last], first)
        ]
        for (line, start), (end_line, stop), text in reversed(self.spans):
            if first <= line and end_line <= last:
                at, until = line - first, end_line - first
                changed = entries[at][0][:start] + text + entries[until][0][stop:]
                entries[at : until + 1] = [(changed, *entries[at][1:])]
        return [
            Line(shift.of(part) if moves else part, number, shift)
            for line, number, moves in entries
            for part in line.split("\n")
        ]


def negated(test: ast.expr, text: str) -> str:
    """Return the source of the negation of a test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return text.removeprefix("not").strip()
    simple = isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return f"not {text}" if simple else f"not ({text})"


def changed_code(source: Source, node: ast.AST, expressions: dict[ast.AST, str]) -> str:
    """Return the source of a node with its changed expressions, without its indentation."""
    (line, start), (end_line, end) = source.span(node)
    margin = len(source.indentation(source.statement(node)))
    entries = source.lines[line - 1 : end_line]
    entries[-1] = entries[-1][:end]
    spans = sorted((*source.span(each), new) for each, new in expressions.items())
    for (first, low), (last, high), new in reversed(spans):
        if (line, start) <= (first, low) and (last, high) <= (end_line, end):
            at, until = first - line, last - line
            entries[at : until + 1] = [entries[at][:low] + new + entries[until][high:]]
    head, *rest = "\n".join(entries).split("\n")
    kept = [each[margin:] if each[:margin].isspace() else each for each in rest]
    return "\n".join([head[start:], *kept])
