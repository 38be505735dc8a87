"""The changes that were tried: a replayed step that was not finite, run with changed lines.

A part of the record of evidence.
"""

from __future__ import annotations

from typing import ClassVar

from halfstep.lazy_dataclass import dataclass

CLOSE = 1e-3
"""The relative difference of a loss from that in fp32 that is due to rounding."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A line of a file, and the lines that replace it.

    Attributes:
        file: Path of the file.
        line: Number of the line, from 1.
        new: The new lines, without the indentation of the old one.
    """

    file: str
    line: int
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change that a rule suggests, as lines and as edits.

    Attributes:
        code: The cause.
        change: The lines of the change, as a finding has them.
        edits: The same change without its comments.
    """

    code: str
    change: tuple[str, ...]
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A change, possibly of several lines one after the other, and what became of the step.

    Attributes:
        code: The cause whose change was tried first.
        first: The change that was tried first.
        change: The lines of all changes that were made together in the end.
        finite: Whether the step is finite with them.
        apart: The relative difference of its loss from the loss in fp32; None if unknown.
    """

    code: str
    first: tuple[str, ...]
    change: tuple[str, ...]
    finite: bool
    apart: float | None = None

    @property
    def said(self) -> str:
        """The result in words."""
        if self.apart is None:
            return "tried: finite"
        if self.apart <= CLOSE:
            return "tried: finite, within 1e-3 of fp32"
        return f"tried: finite; the loss differs from that in fp32 by {self.apart:.1%}"


@dataclass(frozen=True, slots=True)
class Attempts:
    """The changes that were tried."""

    signal: ClassVar[str] = "attempts"
    found: tuple[Attempt, ...] = ()
