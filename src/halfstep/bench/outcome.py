"""What a bench came to: one form, which the terminal, the page and programs are served from."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halfstep.compare.rows.measures import one_line
from halfstep.train.environment import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from halfstep.show.document import TableCell

RESULTS = "results.json"
REPORT = "report.html"


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured, and where.

    Attributes:
        bench: The bench: loader, threads, launch or step.
        config: The config's name.
        options: What was overridden of it.
        device: Where it ran.
        environment: Versions and machine, as plain data.
    """

    bench: str
    config: str
    options: tuple[str, ...]
    device: str
    environment: Mapping[str, Any]

    @property
    def title(self) -> str:
        """What the table is headed."""
        options = f" with {' '.join(self.options)}" if self.options else ""
        return f"bench {self.bench} {self.config} on {self.device}{options}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a bench came to.

    Attributes:
        subject: What was measured.
        headers: Of the table's columns; a terminal breaks them at the bars.
        texts: How many of the first columns are text.
        rows: The table.
        recommendation: What to do on this machine, in one line.
        notes: What the reader of the table has to know.
        figures: All that was measured, for programs.
        arms: What the lines of the charts are called, by the number that they have there.
        charts: What the page draws; see `Chart` in the report's scripts.
        bars: What it shows as bars.
    """

    subject: Subject
    headers: tuple[str, ...]
    texts: int
    rows: Sequence[Sequence[TableCell]]
    recommendation: str
    notes: tuple[str, ...]
    figures: Mapping[str, Any]
    arms: tuple[str, ...] = ()
    charts: Sequence[Mapping[str, Any]] = field(default=())
    bars: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def titles(self) -> list[str]:
        """The headers, each in one line."""
        return [one_line(header) for header in self.headers]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        subject = self.subject
        return {
            "bench": subject.bench,
            "config": subject.config,
            "options": list(subject.options),
            "device": subject.device,
            "environment": dict(subject.environment),
            **self.figures,
            "recommendation": self.recommendation,
            "notes": list(self.notes),
        }


def subject(bench: str, config: str, options: Sequence[str], device: torch.device) -> Subject:
    """Return what is measured on this machine."""
    environment = {**describe(device), "processors": processors()}
    return Subject(bench, config, tuple(options), str(device), environment)


def processors() -> int:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
