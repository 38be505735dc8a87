"""The lines of the program, as far as they are known: where a line stands, and which names exist.

The evidence has the text of every line that did something. On the machine of the program, the files
of these lines are read, too, if they still have these lines.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from halfstep.doctor.record.sites import Site, is_of_user, without_comment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.record import Evidence

_SITE = {"file", "line", "function", "text"}


class Listing:
    """The known lines of a program.

    Args:
        evidence: The evidence of the program.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._sites = {(each.file, each.line): each for each in _sites_in(evidence)}
        self._files = sorted({each.file for each in self._sites.values() if is_of_user(each.file)})

    @cached_property
    def _lines(self) -> dict[str, list[str]]:
        """The lines of each file that still has all lines of the evidence."""
        read = {file: linecache.getlines(file) for file in self._files}
        changed = {
            each.file
            for each in self._sites.values()
            if each.file in read and each.text not in _line(read[each.file], each.line)
        }
        return {file: lines for file, lines in read.items() if lines and file not in changed}

    def find(self, text: str, near: Site | None) -> Site | None:
        """Return where a line stands: near another line, or in the only place with this text.

        Args:
            text: The line; its indentation and a comment at its end do not matter.
            near: A line near which it is expected; None if unknown.

        Returns:
            The place, with the line as it stands there; None if it is in no place, or in several
            places none of which is in the file of `near`.
        """
        wanted = without_comment(text.strip())
        if not wanted:
            return None
        if near is not None and near.text == wanted:
            return self._as_written(near)
        acting = [each for each in self._sites.values() if each.text == wanted]
        found = acting or [
            Site(file, number, "", wanted)
            for file, lines in self._lines.items()
            for number, line in enumerate(lines, 1)
            if wanted in line and without_comment(line.strip()) == wanted
        ]
        if near is not None:
            here = [each for each in found if each.file == near.file]
            found = [min(here, key=lambda each: abs(each.line - near.line))] if here else found
        return self._as_written(found[0]) if len(found) == 1 else None

    def at(self, place: str) -> Site | None:
        """Return a line of the evidence by its place, such as "train.py:12"; None without one."""
        return next((each for each in self._sites.values() if str(each) == place), None)

    def only_with(self, part: str, near: Site | None) -> str | None:
        """Return the only line that contains a text as a part of its code; None without one."""
        if not part.strip() or part.lstrip().startswith("#"):
            return None
        is_part = re.compile(rf"(?<![\w.]){re.escape(part)}(?![\w.(])").search
        if near is not None and is_part(near.text):
            return near.text
        lines = {each.text for each in self._sites.values() if is_part(each.text)}
        for each in self._lines.values():
            lines |= {code for line in each if is_part(code := without_comment(line.strip()))}
        return lines.pop() if len(lines) == 1 else None

    def names(self, place: Site | None) -> set[str]:
        """Return the names in the file of a line; without one, in all files of the program."""
        files = [place.file] if place and place.file in self._lines else [*self._lines]
        text = "".join(line for file in files for line in self._lines[file])
        text += "\n".join(each.text for each in self._sites.values())
        return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))

    def _as_written(self, site: Site) -> Site:
        """Return a line with its comment."""
        lines = self._lines.get(site.file, [])
        line = _line(lines, site.line).strip()
        return Site(site.file, site.line, site.function, line or site.text)


def _line(lines: list[str], number: int) -> str:
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _sites_in(value: Any) -> Iterator[Site]:
    """Yield the lines in a record, at any depth; a record without a class is read from JSON."""
    if isinstance(value, Site):
        yield value
    elif isinstance(value, dict):
        if value.keys() == _SITE:
            yield Site(**value)
        else:
            for each in value.values():
                yield from _sites_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _sites_in(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _sites_in(getattr(value, field.name))
