"""Handles faults of a data set: an error ends the run, a warning does not.

Workers only report images that cannot be read; the training process handles them here.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


SHOWN = 20
"""Largest number of rows or names that a message lists, and of separate warnings of one kind."""


def listing(entries: Iterable[str]) -> str:
    """Return the first `SHOWN` entries in one line, with the number of the others."""
    entries = list(entries)
    more = f" and {len(entries) - SHOWN:,} more" if len(entries) > SHOWN else ""
    return ", ".join(entries[:SHOWN]) + more


NoticeKind = Literal["format", "spelling", "hidden"]


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark about a data set as a whole, which training only prints as a warning.

    Attributes:
        kind: Kind of the notice; `halfstep.train.data.audit.check.MEANINGS` describes it.
        text: The notice in one line.
    """

    kind: NoticeKind
    text: str


class Unusable(UserError):  # noqa: N818  (it names what was found, as FileNotFoundError does)
    """Data cannot be used for training; the message has the first of the reasons."""

    def __init__(self, reasons: Sequence[UserError], notices: Sequence[Notice] = ()) -> None:
        more = len(reasons) - 1
        rest = f" (and {more:,} more; halfstep data check lists all)" if more else ""
        super().__init__(f"{reasons[0]}{rest}")
        self.reasons = tuple(reasons)
        self.notices = tuple(notices)


class DataWarning(UserWarning):
    """The data have a fault, but training continues."""


def warn_of(texts: Iterable[str]) -> None:
    """Give a warning for each different text of a notice."""
    for text in dict.fromkeys(texts):
        warnings.warn(text, DataWarning, stacklevel=2)


class Faults:
    """The images of a run that could not be read.

    Args:
        on_error: "fatal" raises an error for the first image; "skip" warns once for each image.

    Attributes:
        seen: A line for each image so far.
    """

    def __init__(self, on_error: Literal["fatal", "skip"]) -> None:
        self.on_error = on_error
        self.seen: set[str] = set()

    def report(self, lines: Iterable[str]) -> None:
        """Raise an error or warn, as `on_error` requires; `lines` has one line for each image."""
        for line in lines:
            if self.on_error == "fatal":
                raise UserError(
                    f"{line}; or write data.on_error=skip to continue without such images"
                )
            if line not in self.seen:
                self.seen.add(line)
                warnings.warn(f"left out: {line}", DataWarning, stacklevel=2)
