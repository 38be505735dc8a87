"""The outcome of a bench, in one form for the terminal, the page and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halfstep.show.table import one_line
from halfstep.train.environment import describe, processors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from halfstep.show.document import TableCell

RESULTS = "results.json"
REPORT = "report.html"


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a bench: the config, the device and the machine.

    Attributes:
        bench: The name of the bench: loader, threads, launch or step.
        config: The name of the config.
        options: The overrides of the config.
        device: The device.
        environment: Versions and machine, as plain data.
    """

    bench: str
    config: str
    options: tuple[str, ...]
    device: str
    environment: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The title of the table."""
        options = f" with {' '.join(self.options)}" if self.options else ""
        return f"bench {self.bench} {self.config} on {self.device}{options}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a bench.

    Attributes:
        subject: The subject of the bench.
        headers: The column headers of the table; on a terminal, "|" becomes a line break.
        texts: The number of leading columns that contain text.
        rows: The rows of the table.
        recommendation: What to do on this machine, in one line.
        notes: Notes that explain the table.
        figures: All measured figures, for programs.
        arms: The names of the lines in the charts, by their index.
        charts: The charts of the page; see `Chart` in the report's scripts.
        bars: The bars of the page.
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
    """Return the subject of a bench on this machine."""
    environment = {**describe(device), "processors": processors()}
    return Subject(bench, config, tuple(options), str(device), environment)
