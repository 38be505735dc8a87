"""Reads a CSV file of annotations: image,label and perhaps split, each row with its number."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.errors import UserError, closest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SPLITS = ("train", "val")


@dataclass(frozen=True, slots=True)
class Row:
    """One image as a CSV file has it.

    Attributes:
        number: Line of the file that the row ends on, as editors and spreadsheets count: the
            header is row 1.
        image: The path as it stands there.
        label: Name of the class.
        split: "train", "val", or "" where the file has no such column.
    """

    number: int
    image: str
    label: str
    split: str


def read(file: Path, *, labelled: bool = True) -> list[Row]:
    """Return the rows of a CSV file.

    Args:
        file: With a header that has the columns image, label and perhaps split, in any order and
            among others. Spaces around a value do not count, and neither do blank lines.
        labelled: Whether the column label must be there; without it labels are "".

    Raises:
        UserError: If it is no such file; the message has the row.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            return list(_rows(csv.reader(text, strict=True), str(file), labelled=labelled))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read as CSV in UTF-8: {error}") from error


def _header(first: Sequence[str], file: str, needed: Sequence[str]) -> list[str]:
    header = [name.strip() for name in first]
    for name in needed:
        if name not in header:
            raise UserError(
                f"{file}, row 1: the header is {','.join(header)!r}, without {name!r}; "
                f"allowed: {','.join(needed)} and perhaps split{closest(name, header)}"
            )
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{file}, row 1: the header has {twice!r} twice; name the columns apart")
    return header


def _rows(lines: Iterator[Sequence[str]], file: str, *, labelled: bool) -> Iterator[Row]:
    needed = ("image", "label") if labelled else ("image",)
    header = _header(next(lines, []), file, needed)
    for values in lines:
        if not any(value.strip() for value in values):
            continue
        number: int = lines.line_num  # type: ignore[attr-defined]  # csv's readers have no type
        if any(value.strip() for value in values[len(header) :]):
            raise UserError(
                f"{file}, row {number}: {','.join(values)!r} has {len(values)} values and the "
                f"header {len(header)}; put a value that holds a comma in double quotes"
            )
        found = dict(zip(header, (value.strip() for value in values), strict=False))
        for name in needed:
            if not found.get(name):
                raise UserError(
                    f"{file}, row {number}: {','.join(values)!r} has no {name}; "
                    f"write it, or leave the row out"
                )
        if "\0" in found["image"]:
            raise UserError(f"{file}, row {number}: the path {found['image']!r} has a null byte")
        split = found.get("split", "")
        if "split" in header and split not in SPLITS:
            raise UserError(
                f"{file}, row {number}: split is {split!r}; allowed: {', '.join(SPLITS)}"
                f"{closest(split, SPLITS)}"
            )
        yield Row(number, found["image"], found.get("label", ""), split)
