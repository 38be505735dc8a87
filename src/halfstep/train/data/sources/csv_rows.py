"""Reads a CSV file of annotations, with the columns image, label and optionally split."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from halfstep import caller
from halfstep.errors import UserError, closest
from halfstep.train.config.data import ColumnsConfig
from halfstep.train.data.sources.class_names import is_missing
from halfstep.train.data.sources.faults import Unusable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import TextIO

SPLITS = ("train", "val")
STANDARD = ColumnsConfig()
_SEPARATORS = (",", ";", "\t")
"""Possible separators of values. Spreadsheets choose by country; the header shows the choice."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One image in a CSV file.

    Attributes:
        number: Number of the line on which the row ends, as editors and spreadsheets count; the
            header is row 1.
        image: Path of the image, as written in the file.
        label: Name of the class.
        split: "train", "val", or "" if the file has no column split.
    """

    number: int
    image: str
    label: str
    split: str


def read(file: Path, columns: ColumnsConfig = STANDARD, *, labelled: bool = True) -> list[CsvRow]:
    """Return the rows of a CSV file.

    Args:
        file: A CSV file in UTF-8. Its header has the columns image, label and optionally split, in
            any order and letter case; other columns are ignored. The header also shows whether
            commas, semicolons or tabs separate values. Spaces around a value and blank lines are
            ignored.
        columns: The names of these columns in the file.
        labelled: Whether the column label is required; without this column labels are "".

    Raises:
        Unusable: If rows are invalid; the message describes the first of them.
        UserError: If the file cannot be read as such a CSV file.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            return _Reader(str(file), columns, labelled=labelled).rows(text)
    except UnicodeDecodeError as error:
        raise UserError(_not_utf_8(file, error)) from error
    except OSError as error:
        raise UserError(f"{file} cannot be read as CSV in UTF-8: {error}") from error


def columns_of(given: str | Mapping[str, str]) -> ColumnsConfig:
    """Return the columns that a mapping names, or a text such as "image=filename,label=species"."""
    pairs = (
        [pair.partition("=")[::2] for pair in given.split(",")]
        if isinstance(given, str)
        else list(given.items())
    )
    named = {str(key).strip(): str(name).strip() for key, name in pairs}
    wrong = [
        key for key, name in named.items() if key not in ColumnsConfig.model_fields or not name
    ]
    if wrong or len(named) < len(pairs):
        allowed = ", ".join(ColumnsConfig.model_fields)
        example = caller.setting(columns={"image": "filename", "label": "species"})
        raise UserError(
            f"{caller.name('columns')} is {given!r}; allowed: {allowed}, each once, with the name "
            f"of its column, such as {example}"
        )
    return ColumnsConfig(**named)


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV text, with quotes where they are necessary."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class _Reader:
    """Reads one CSV file; see `read` for the arguments."""

    def __init__(self, file: str, columns: ColumnsConfig, *, labelled: bool) -> None:
        self._file = file
        self._columns = columns
        self._needed = ("image", "label") if labelled else ("image",)

    def rows(self, text: TextIO) -> list[CsvRow]:
        """Return all rows; raise one `Unusable` with an error for each invalid row."""
        first_line = text.readline()
        separator = self._separator(first_line)
        reader = csv.reader(chain([first_line], text), delimiter=separator, strict=True)
        lines = self._lines(reader)
        _, first = next(lines, (1, []))
        header = [name.strip() for name in first]
        places = self._places(header)
        rows: list[CsvRow] = []
        refused: list[UserError] = []
        for number, values in lines:
            stripped = [value.strip() for value in values]
            if not any(stripped):
                continue
            row = {
                key: stripped[place] if place < len(stripped) else ""
                for key, place in places.items()
            }
            problem = self._problem(row, stripped, len(header))
            if problem:
                refused.append(UserError(f"{self._file}, row {number}: {problem}"))
            else:
                rows.append(
                    CsvRow(number, row["image"], row.get("label", ""), row.get("split", ""))
                )
        if refused:
            raise Unusable(refused)
        return rows

    def _separator(self, header: str) -> str:
        """Return the separator that finds most columns in the header; a comma if several do."""
        columns = [self._name(key).casefold() for key in self._needed]

        def columns_found(separator: str) -> int:
            try:
                names = next(csv.reader([header], delimiter=separator), [])
            except csv.Error:
                return 0
            return len({name.strip().casefold() for name in names} & set(columns))

        return max(_SEPARATORS, key=columns_found)

    def _name(self, key: str) -> str:
        name: str = getattr(self._columns, key)
        return name

    def _places(self, header: Sequence[str]) -> dict[str, int]:
        """Return the index of each column in a row, from 0."""
        places = {}
        for key in dict.fromkeys((*self._needed, "label", "split")):
            wanted = self._name(key)
            same = [place for place, name in enumerate(header) if name == wanted] or [
                place for place, name in enumerate(header) if name.casefold() == wanted.casefold()
            ]
            if len(same) > 1:
                raise UserError(
                    f"{self._file}, row 1: the header has {wanted!r} twice; name the columns apart"
                )
            if same:
                places[key] = same[0]
            elif key in self._needed:
                raise UserError(self._without(key, header))
        return places

    def _without(self, key: str, header: Sequence[str]) -> str:
        wanted = self._name(key)
        taken = {self._name(other).casefold() for other in ("image", "label", "split")}
        free = [name for name in header if name and name.casefold() not in taken]
        example = free[0] if free else "NAME"
        return (
            f"{self._file}, row 1: the header is {','.join(header)!r}, without {wanted!r}; "
            f"allowed: {','.join(map(self._name, self._needed))} and perhaps "
            f"{self._name('split')}, separated by commas{closest(wanted, header)}; or say which "
            f"column it is, with data.columns.{key}={example} in a config and "
            f"{caller.setting(columns={key: example})} beside a CSV file"
        )

    def _problem(self, row: Mapping[str, str], values: Sequence[str], columns: int) -> str:
        """Return a description of the fault of a row, or "" if the row is valid."""
        shown = repr(",".join(values))
        if any(values[columns:]):
            return (
                f"{shown} has {len(values)} values and the header {columns}; "
                "put a value that holds a comma in double quotes"
            )
        for key in self._needed:
            if is_missing(row[key]):
                given = f"no {key}" if not row[key] else f"{row[key]!r} for a missing {key}"
                return f"{shown} has {given}; write it, or leave the row out"
        for key, value in row.items():
            if "\n" in value or "\r" in value:
                return (
                    f"the {key} {value[:60]!r} has a line break; "
                    "close the double quote that is open, or leave the row out"
                )
        if "\0" in row["image"]:
            return f"the path {row['image']!r} has a null byte"
        if "split" in row and row["split"] not in SPLITS:
            return (
                f"split is {row['split']!r}; allowed: {', '.join(SPLITS)}"
                f"{closest(row['split'], SPLITS)}"
            )
        return ""

    def _lines(self, lines: Iterator[Sequence[str]]) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield the number of the line on which each row ends, and the values of the row."""
        ended = 0
        try:
            for values in lines:
                ended = lines.line_num  # type: ignore[attr-defined]  # csv's readers have no type
                yield ended, values
        except csv.Error as error:
            raise UserError(f"{self._file}, row {ended + 1}: {_cause(error)}") from error


def _cause(error: csv.Error) -> str:
    """Return a description of the fault of a row that is not valid CSV."""
    message = str(error)
    if "end of data" in message:
        return 'a double quote is opened and never closed; close it, or write "" for one in a value'
    if "field limit" in message:
        return (
            f"a value is longer than {csv.field_size_limit():,} characters; close the double quote "
            "that is open, or shorten it"
        )
    if "expected after" in message:
        return (
            "something follows the closing double quote of a value, here or on one of the next "
            'lines; close the quote that is open, or write "" for one in a value'
        )
    return f"cannot be read as CSV: {message}"


def _not_utf_8(file: Path, error: UnicodeDecodeError) -> str:
    with file.open("rb") as content:
        beginning = content.read(2)
        if beginning in _UTF_16:
            return f"{file} is in UTF-16 and not in UTF-8; save it as CSV in UTF-8"
        content.seek(0)
        for row, line in enumerate(content, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return (
                    f"{file}, row {row}: {line[:60]!r} cannot be read as CSV in UTF-8; "
                    "save the file in UTF-8"
                )
    return f"{file} cannot be read as CSV in UTF-8: {error}"
