"""Prints a change so that it applies as it stands: each line has its place, in a known block.

A deleted line, or a line around added ones, directly follows the printed line before it, or has its
place above it ("@ train.py:12"). Added lines belong to the block of the line before them. Where
they are the first lines of a block, the line after them is printed as deleted and added again.
"""

from __future__ import annotations

import ast
import linecache
from collections import defaultdict
from dataclasses import field
from typing import TYPE_CHECKING

from halfstep.doctor.record.blocks import begins, ends, following, is_alone, parsed
from halfstep.doctor.record.scope import unbound
from halfstep.doctor.record.sites import Site
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

DELETED, ADDED, AROUND, PLACE = "- ", "+ ", "  ", "@ "
Placed = tuple[str, "Site | None"]
"""A line of a change, and its place in the program; added lines and places ("@ ") have none."""


@dataclass(slots=True)
class _Piece:
    """A line of the program in a change, with the lines that are added before and after it."""

    text: str
    site: Site
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)


def printed(lines: Sequence[Placed], site: Site | None) -> list[Placed] | None:
    """Return a change with the places of its lines; None if an added line has no place.

    Args:
        lines: The lines, in which "@ " stands where the next added lines belong to the line after.
        site: The line that is printed above the change.
    """
    pieces = _pieces(lines, site)
    if pieces is None:
        return None
    result: list[Placed] = []
    expected = (site.file, site.line) if site else None
    for piece in pieces:
        if (piece.site.file, piece.site.line) != expected:
            result.append((f"{PLACE}{piece.site}", None))
        expected = piece.site.file, piece.site.line + 1
        added: list[Placed] = [(each, None) for each in piece.before]
        if piece.before and not _is_below_its_block(piece.site):
            result.append((DELETED + piece.text[2:], piece.site))
            again = [] if piece.text.startswith(DELETED) else [(ADDED + piece.text[2:], None)]
            result += [*added, *again]
        else:
            result += [*added, (piece.text, piece.site)]
        result += [(each, None) for each in piece.after]
    return result


def _pieces(lines: Sequence[Placed], site: Site | None) -> list[_Piece] | None:
    """Return the lines of the program in a change; None if an added line belongs to none.

    If all lines are added ones, they stand before the line of the finding.
    """
    pieces: list[_Piece] = []
    waiting: list[str] = []
    last: _Piece | None = None
    for text, place in lines:
        if text.startswith(PLACE):
            last = None
        elif place is not None:
            same = [each for each in pieces if (each.text, each.site) == (text, place)]
            last = same[0] if same else _Piece(text, place)  # Lines may be added there already.
            last.before += waiting
            pieces += [] if same else [last]
            waiting = []
        elif last is None:
            waiting.append(text)
        else:
            last.after.append(text)
    if waiting and not pieces and site is not None and site.text:
        return [_Piece(AROUND + site.text, site, waiting)]
    if waiting or not pieces:
        return None
    if not any(piece.before or piece.after for piece in pieces):
        for piece in pieces:  # A block that only loses its lines must not be empty.
            if piece.text.startswith(DELETED) and is_alone((piece.site.file, piece.site.line, "")):
                piece.after.append(ADDED + "pass")
    return _after_statements(pieces)


def _after_statements(pieces: list[_Piece]) -> list[_Piece] | None:
    """Let lines that are added after a statement of several lines stand before the next one."""
    result: list[_Piece] = []
    for piece in pieces:
        mark = (piece.site.file, piece.site.line, "")
        is_whole = not piece.after or piece.text.startswith(DELETED)
        if is_whole or not begins(mark) or ends(mark) == piece.site.line:
            result.append(piece)
            continue
        if piece.text.endswith(":"):  # the first line of a block, into which the lines belong
            result.append(piece)
            continue
        after = following(mark)
        if after is None:
            return None
        line = linecache.getline(after[0], after[1]).strip()
        next_site = Site(after[0], after[1], piece.site.function, line)
        if piece.before:
            result.append(_Piece(piece.text, piece.site, piece.before))
        result.append(_Piece(AROUND + line, next_site, piece.after))
    return result


def _is_below_its_block(site: Site) -> bool:
    """Return whether the line above a line is a whole statement of the same block, or unknown."""
    line, above = (linecache.getline(site.file, site.line - each) for each in (0, 1))
    if not line:
        return True
    mark = (site.file, site.line - 1, "")
    return bool(above.strip()) and _indent(above) == _indent(line) and ends(mark) == mark[1]


def new_lines(lines: Sequence[Placed]) -> dict[tuple[str, int], list[str]] | None:
    """Return the lines that replace each line of a change, by file and number of the line.

    Args:
        lines: The lines of a change, with their places.

    Returns:
        The lines, without the indentation of the replaced one; None if an added line has no place.
    """
    new: dict[tuple[str, int], list[str]] = {}
    last: tuple[str, int] | None = None
    waiting: list[str] = []
    for text, place in lines:
        if text.startswith(PLACE):
            last = None
        elif place is not None:
            last = place.file, place.line
            kept = [] if text.startswith(DELETED) else [place.text]
            new.setdefault(last, []).extend([*waiting, *kept])
            waiting = []
        else:
            (waiting if last is None else new[last]).append(text[2:])
    return None if waiting else new


def is_valid(lines: Sequence[Placed]) -> bool | None:
    """Return whether a change does something, and leaves files valid with all their names bound.

    Returns:
        None if a file cannot be read.
    """
    changed: dict[str, dict[int, list[str]]] = defaultdict(dict)
    for (file, line), new in (new_lines(lines) or {}).items():
        changed[file][line] = new
    results = [_is_valid(file, its) for file, its in changed.items()]
    return None if None in results else bool(results) and all(results)


def _is_valid(file: str, changed: dict[int, list[str]]) -> bool | None:
    before = linecache.getlines(file)
    if not before or parsed("".join(before)) is None:
        return None
    after: list[str] = []
    new: set[int] = set()
    for number, line in enumerate(before, 1):
        if number not in changed:
            after.append(line)
            continue
        for each in changed[number]:
            after.append(f"{_indent(line)}{each}\n")
            if each.strip() != line.strip():
                new.add(len(after))
    missing = unbound("".join(after), new)
    is_same = missing is not None and _tree(before) == _tree(after)
    return missing == set() and not is_same


def _tree(lines: list[str]) -> str:
    return ast.dump(ast.parse("".join(lines)))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
