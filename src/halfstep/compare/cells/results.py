"""What the runs of a comparison came to: a summary on disk becomes the result of its cell.

`directory` reads the summaries, `rows` brings the seeds of an arm together.
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
    """What one cell came to.

    Attributes:
        cell: The cell.
        status: How its run ended; "pending" when it has not.
        reason: Why it did not finish, in one line.
        summary: The run's summary, empty when it left none.
        environment: The versions and the machine that the run had.
        cause: Why it went wrong, as doctor says it, in one line; None where it says nothing.
    """

    cell: Cell
    status: Status
    reason: str | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    cause: str | None = None

    @property
    def explanation(self) -> str:
        """Where doctor's explanation is, below the comparison's directory; "" without one."""
        return f"{self.cell.directory.name}/run/{TEXT}" if self.cause else ""

    @property
    def said(self) -> str:
        """Why it did not finish, or was not finite on its way; "" for nothing."""
        if not self.cause:
            return self.reason or ""
        reason = self.reason or ""
        if self.status == "nonfinite":
            # What the run suggests to try was written before the cause was known.
            reason = reason.partition("; try ")[0]
        return "; ".join(filter(None, (reason, f"doctor found {self.cause}")))

    def number(self, name: str) -> float | None:
        """A finite number of the summary, dots leading into what is nested; None for none."""
        found: Any = self.summary
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return finite(found)

    def source(self, name: str) -> str:
        """Where a number is from: the file below the comparison's directory, and the key in it."""
        return f"{self.cell.directory.name}/run/summary.json#{name}"


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over the seeds of one arm.

    Attributes:
        mean: Its mean.
        sd: Its sample standard deviation; None for one seed.
        low: The smallest.
        high: The largest.
        seeds: Over how many seeds.
    """

    mean: float
    sd: float | None
    low: float
    high: float
    seeds: int

    @classmethod
    def over(cls, values: Iterable[float | None]) -> Spread | None:
        """Take the spread of the values that exist; None when none does."""
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
    """Turn the summary of a cell's run into its result.

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
    """Return a number of a JSON file; None for what is no number, "nan" and "inf" included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
