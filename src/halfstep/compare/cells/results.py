"""The results of cells, made from the summaries of their runs.

`directory` reads the summaries, and `rows` combines the seeds of an arm.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from halfstep.train.store.diagnosis_file import TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.compare.plan.grid import Cell

Status = Literal["pending", "finished", "nonfinite", "collapsed", "crashed"]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one cell.

    Attributes:
        cell: The cell.
        status: How the run ended; "pending" if it has not ended.
        reason: Why the run did not finish, in one line; None for a finished run.
        summary: The run's summary; empty if the run wrote none.
        environment: The versions and the machine of the run.
        cause: The cause of a failure that doctor found, in one line; None if there is none.
    """

    cell: Cell
    status: Status
    reason: str | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    cause: str | None = None

    @property
    def explanation(self) -> str:
        """The path of doctor's explanation in the comparison's directory; "" if there is none."""
        return f"{self.cell.directory.name}/run/{TEXT}" if self.cause else ""

    @property
    def failure(self) -> str:
        """Why the run failed, or had a non-finite loss on the way; "" if neither happened."""
        if not self.cause:
            return self.reason or ""
        reason = self.reason or ""
        if self.status == "nonfinite":
            # The run wrote its suggestion before doctor found the cause.
            reason = reason.partition("; try ")[0]
        return "; ".join(filter(None, (reason, f"doctor found {self.cause}")))

    def number(self, name: str) -> float | None:
        """Return a number of the summary, with dots for nested keys; None if it is not finite."""
        value: Any = self.summary
        for part in name.split(".", 1):
            value = value.get(part) if isinstance(value, Mapping) else None
        return finite(value)

    def source(self, name: str) -> str:
        """Return the source of a number: a file in the comparison's directory, "#" and the key."""
        return f"{self.cell.directory.name}/run/summary.json#{name}"


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of one figure over the seeds of an arm.

    Attributes:
        mean: The mean.
        sd: The sample standard deviation; None for one seed.
        low: The smallest value.
        high: The largest value.
        seeds: The number of seeds with a value.
    """

    mean: float
    sd: float | None
    low: float
    high: float
    seeds: int

    @classmethod
    def over(cls, values: Iterable[float | None]) -> Spread | None:
        """Compute the statistics of the values that are not None; None if there are none."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        sd = statistics.stdev(known) if len(known) > 1 else None
        return cls(statistics.fmean(known), sd, min(known), max(known), len(known))


def from_summary(
    cell: Cell,
    summary: Mapping[str, Any],
    environment: Mapping[str, Any] | None = None,
    cause: str | None = None,
) -> Result:
    """Make the result of a cell from the summary of its run.

    Raises:
        ValueError: If the summary has a status that no run writes.
    """
    status, error = summary.get("status"), summary.get("error")
    environment = environment or {}
    if status == "finished":
        return Result(cell, "finished", None, summary, environment, cause)
    if status in ("nonfinite", "collapsed"):
        reason = str(error) if error else f"the run ended {status}"
        return Result(cell, status, reason, summary, environment, cause)
    raise ValueError(f"status is {status!r} in the summary of {cell.run_directory}")


def finite(value: Any) -> float | None:
    """Return a value from a JSON file as a float; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
