"""What becomes of images that cannot be read: the end of the run, or a warning.

Workers only report them; this is where the training process decides.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal

from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Unusable(UserError):  # noqa: N818  (it names what was found, as FileNotFoundError does)
    """Data that cannot be trained on; the message has the first of the reasons."""

    def __init__(self, reasons: Sequence[UserError]) -> None:
        more = len(reasons) - 1
        said = f" (and {more:,} more; halfstep data check lists all)" if more else ""
        super().__init__(f"{reasons[0]}{said}")
        self.reasons = tuple(reasons)


class DataWarning(UserWarning):
    """The data are not as they should be, and training goes on."""


class Faults:
    """The images of a run that could not be read.

    Args:
        on_error: "fatal" makes the first one an error; "skip" warns once for each.

    Attributes:
        seen: A line on each so far.
    """

    def __init__(self, on_error: Literal["fatal", "skip"]) -> None:
        self.on_error = on_error
        self.seen: set[str] = set()

    def report(self, lines: Iterable[str]) -> None:
        """Take note of images that could not be read, a line for each."""
        for line in lines:
            if self.on_error == "fatal":
                raise UserError(
                    f"{line}; or write data.on_error=skip to continue without such images"
                )
            if line not in self.seen:
                self.seen.add(line)
                warnings.warn(f"left out: {line}", DataWarning, stacklevel=2)
