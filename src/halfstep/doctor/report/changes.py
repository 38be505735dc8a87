"""Checks the change of a finding against the program: it applies, letter by letter, or is in words.

Rules write a change as lines to delete ("- "), to add ("+ ") and around them ("  "). They know a
program only by its events, so they also write lines as most programs have them. Here, each line
that is to be deleted, or stands around the added ones, is looked up in the program, and so is each
name in the added code. If all are there, and the changed file is valid, the change is given, with
the place of each line that is not the line of the finding ("@ train.py:12"). Otherwise, it becomes
advice in words.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import textwrap
import tokenize
from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from halfstep.doctor.record.attempts import Edit
from halfstep.doctor.report.diff import (
    ADDED,
    DELETED,
    PLACE,
    Placed,
    is_valid,
    new_lines,
    printed,
)
from halfstep.doctor.report.frameworks import in_its_words, is_driven, is_for_framework

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.sites import Site
    from halfstep.doctor.report.listing import Listing
    from halfstep.doctor.verdict import Finding

_GIVEN = {*dir(builtins), *keyword.kwlist, "_"}


def checked(finding: Finding, evidence: Evidence, listing: Listing) -> Finding:
    """Return a finding whose change applies to the program, or is in words.

    Args:
        finding: A finding whose change has the program's names as far as they are known.
        evidence: The evidence of the program.
        listing: The lines of the program.
    """
    for change in (finding.change, *finding.otherwise):
        placed = _found(replace(finding, change=change), evidence, listing)
        if placed is not None:
            return replace(finding, change=tuple(_shown(text) for text, _ in placed))
    return in_words(finding, evidence, listing)


def _shown(line: str) -> str:
    """Return a line as it is printed: a comment on the change is no line to add."""
    is_remark = line.startswith(ADDED) and not _code(line[2:])
    return line[2:].lstrip() if is_remark else line


def in_words(finding: Finding, evidence: Evidence, listing: Listing) -> Finding:
    """Return a finding whose change is in words.

    Args:
        finding: A finding, as for `checked`.
        evidence: The evidence of the program.
        listing: The lines of the program.
    """
    lines = [*_whole(finding.change, finding.site, listing)]
    lines = [each for each in lines if not each.startswith(PLACE)]
    words = in_its_words(lines, finding.summary, evidence)
    words = words or [*_in_words(lines, finding.site, listing)]
    return replace(finding, change=tuple(words))


def edits_of(finding: Finding, evidence: Evidence, listing: Listing) -> tuple[Edit, ...]:
    """Return the change of a finding as edits of lines; empty if it does not apply.

    Args:
        finding: A finding, as for `checked`.
        evidence: The evidence of the program.
        listing: The lines of the program.
    """
    new = new_lines(_found(finding, evidence, listing) or ())
    return tuple(
        Edit(file, line, tuple(code for each in lines if (code := _code(each))))
        for (file, line), lines in (new or {}).items()
    )


def _found(finding: Finding, evidence: Evidence, listing: Listing) -> list[Placed] | None:
    """Return a change as it is printed, with the places of its lines; None if it does not apply."""
    lines = [*_whole(finding.change, finding.site, listing)]
    if not _is_code(lines) or is_driven(evidence, {each[2:] for each in lines}):
        return None
    if is_for_framework(evidence, [each[2:] for each in lines if each.startswith(ADDED)]):
        return None
    placed = _placed(lines, finding.site, listing)
    result = None if placed is None else printed(placed, finding.site)
    if result is None or is_valid(result) is False:
        return None
    return result


def _whole(change: tuple[str, ...], site: Site | None, listing: Listing) -> Iterator[str]:
    """Yield the lines of a change, with whole lines of the program for parts of a line.

    A rule may write only the part that changes, such as "- lr=0.1" and "+ lr=0.01".
    """
    lines = list(change)
    for number, (line, after) in enumerate(pairwise(change)):
        before, by = line[2:], _code(after[2:])
        if not (line.startswith(DELETED) and after.startswith(ADDED) and by):
            continue
        whole = None if listing.find(before, site) else listing.only_with(before, site)
        if whole is not None:
            comment = after[2:].removeprefix(by)
            lines[number] = DELETED + whole
            lines[number + 1] = ADDED + whole.replace(before, by) + comment
    yield from lines


def _is_code(lines: list[str]) -> bool:
    """Return whether a change is a complete piece of code, and no deletion has only a comment."""
    runs = [(kind, [*run]) for kind, run in groupby(lines, key=lambda line: line[:2])]
    for (kind, _), (next_, added) in pairwise(runs):
        if kind == DELETED and next_ == ADDED and not any(_code(each[2:]) for each in added):
            return False
    new = [each[2:] for each in lines if not each.startswith((DELETED, PLACE))]
    if any(each.startswith(DELETED) and each.endswith(":") for each in lines):
        new.append("    pass")  # The change is in the first line of a block.
    added = [each[2:] for each in lines if each.startswith(ADDED)]
    if not any(_code(each[2:]) for each in lines if each[0] in "-+"):
        return False
    return _parses(new) or _parses(added)


def _parses(lines: list[str]) -> bool:
    try:
        ast.parse(textwrap.dedent("\n".join(lines)))
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def _placed(lines: list[str], site: Site | None, listing: Listing) -> list[Placed] | None:
    """Return the lines of a change and where they stand; None if a line or a name is unknown."""
    placed: list[Placed] = []
    last = site
    for line in lines:
        kind, text = line[:2], line[2:]
        if kind == ADDED:
            placed.append((line, None))
            continue
        if kind == PLACE:
            last = listing.at(text)
            placed.append((kind, None))
            continue
        found = listing.find(text, last)
        if found is None:
            return None
        indent = text[: len(text) - len(text.lstrip())]
        if kind != DELETED and indent and _is_in_new_block(placed, indent):
            into_block = ADDED + indent + found.text
            placed += [(DELETED + found.text, found), (into_block, None)]
        else:
            placed.append((kind + indent + found.text, found))
        last = found
    return None if _unknown_names(lines, last, listing) else placed


def _is_in_new_block(placed: list[Placed], indent: str) -> bool:
    """Return whether the added lines before an indented line begin a block around it."""
    if not placed or not placed[-1][0].startswith(ADDED):
        return False  # Otherwise, it continues a changed line, or stands in a block of the program.
    added = [_code(line[2:]) for line, _ in reversed(placed) if line.startswith(ADDED)]
    outer = next((each for each in added if each and not each.startswith(indent)), "")
    return outer.endswith(":")


def _unknown_names(lines: list[str], place: Site | None, listing: Listing) -> set[str]:
    """Return the names in added code that neither the program nor the change itself defines."""
    added = [code for each in lines if each.startswith(ADDED) and (code := _code(each[2:]))]
    text = "\n".join(added)
    bound = {*re.findall(r"\b(\w+)\s*=(?!=)", text), *re.findall(r"\b(?:as|def)\s+(\w+)", text)}
    bound |= {name for each in re.findall(r"\bfor\s+(.+?)\s+in\b", text) for name in _names(each)}
    used = {name for each in added for name in _names(each)} - bound - _GIVEN
    return used - listing.names(place) if used else set()


def _names(code: str) -> set[str]:
    """Return the variables in a line of code, without attributes and names of arguments."""
    names: set[str] = set()
    before = ""
    try:
        tokens = [*tokenize.generate_tokens(io.StringIO(code.strip()).readline)]
    except (tokenize.TokenError, SyntaxError):  # a statement that continues on the next line
        return {*re.findall(r"(?<![\w.])[A-Za-z_]\w*(?!\w|\s*=[^=])", code)}
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        is_argument = after is not None and after.string == "="
        if token.type == tokenize.NAME and before != "." and not is_argument:
            names.add(token.string)
        before = token.string
    return names


def _code(text: str) -> str:
    """Return a line without its comment."""
    return "" if text.lstrip().startswith("#") else text.partition("  #")[0].rstrip()


def _place(runs: list[tuple[str, list[str]]], number: int) -> str:
    """Return the word for lines around others in a change, by the lines before and after them."""
    before = [run for kind, run in runs[:number][-1:] if kind == ADDED]
    after = [run for kind, run in runs[number + 1 :][:1] if kind == ADDED]
    if not after or (before and _code(before[0][-1][2:])):
        return "before"
    return "after" if _code(after[0][0][2:]) else "at"


def _in_words(lines: list[str], site: Site | None, listing: Listing) -> Iterator[str]:
    """Yield a change that does not apply as advice; code that the program lacks is an example."""
    runs = [(kind, [*run]) for kind, run in groupby(lines, key=lambda line: line[:2])]
    for number, (kind, run) in enumerate(runs):
        texts_of_run = [each[2:] for each in run]
        for is_code, part in groupby(texts_of_run, key=lambda text: bool(_code(text))):
            texts = [*part]
            if not is_code:
                leave_out = "leave out " if kind == DELETED else ""
                yield from (leave_out + each.strip().removeprefix("#").strip() for each in texts)
                continue
            if kind == ADDED:
                known = not _unknown_names([ADDED + each for each in texts], site, listing)
                yield "write" if known else "write code such as"
            else:
                place = _place(runs, number)
                if kind == DELETED:
                    place = "in place of" if len(runs) > 1 else "leave out"
                stands = all(listing.find(each, site) for each in texts)
                yield place if stands else f"{place} code such as"
            yield from (f"    {each}" for each in texts)
