"""Handles images that cannot be read: ends the run, or prints a warning.

Workers only report these images; the training process handles them here.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal

from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Unusable(UserError):  # noqa: N818  (it names what was found, as FileNotFoundError does)
    """Data cannot be used for training; the message has the first of the reasons."""

    def __init__(self, reasons: Sequence[UserError]) -> None:
        more = len(reasons) - 1
        said = f" (and {more:,} more; halfstep data check lists all)" if more else ""
        super().__init__(f"{reasons[0]}{said}")
        self.reasons = tuple(reasons)


class DataWarning(UserWarning):
    """The data have a fault, but training continues."""


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
