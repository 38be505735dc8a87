"""Whether others kept the machine busy while a benchmark measured, and what may be kept then.

A benchmark hands what it has measured to `keep`, which says in the result how much of the cores
others had, and leaves the committed result of a quiet machine alone when that was too much. What
counts is the time since this module was imported, or the block of `watched()`.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import campaign

from halfstep.files import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RESULTS = Path(__file__).resolve().parent / "results"
QUIET = 0.05
"""The most of all cores that others may have."""


@dataclass
class Watched:
    """The load of the machine over a block, in seconds.

    Attributes:
        wall: How long it took.
        own: Of cores, by this process and those that it has waited for.
        all: Of cores, by every process, and by other guests of the same host.
    """

    wall: float = 0.0
    own: float = 0.0
    all: float = 0.0

    @property
    def others(self) -> float:
        """The share of all cores that was not ours, from 0 to 1."""
        return max(0.0, self.all - self.own) / (self.wall * (os.cpu_count() or 1))


@contextmanager
def watched() -> Iterator[Watched]:
    """Measure the load of the machine over the block."""
    seen, before = Watched(), _clocks()
    try:
        yield seen
    finally:
        vars(seen).update(vars(_since(before)))


def keep(results: Path, document: Mapping[str, object], seen: Watched | None = None) -> None:
    """Write a result, unless others were busy and there is one already.

    Args:
        results: Its file.
        document: What was measured.
        seen: The load meanwhile; by default since this module was imported.

    Raises:
        SystemExit: With a line that says so, if it is not written.
    """
    seen = seen or _since(_AT_IMPORT)
    quiet = seen.others <= QUIET
    machine = {
        "quiet": quiet,
        "share_of_others": round(seen.others, 4),
        "limit": QUIET,
        "minutes": round(seen.wall / 60, 1),
    }
    kept = {name: each for name, each in document.items() if name != "machine"}
    text = json_text({"machine": machine, **kept}, indent=2) + "\n"
    sys.stdout.write(text)
    if not quiet and results.exists():
        sys.exit(
            f"others had {seen.others:.0%} of the cores, and {QUIET:.0%} is the most: "
            f"{results} is left as it was; measure again on a quiet machine"
        )
    results.write_text(text)
    if results.parent.resolve() == _RESULTS:
        campaign.write_table()


def _since(before: tuple[float, float, float]) -> Watched:
    return Watched(*(now - then for now, then in zip(_clocks(), before, strict=True)))


def _clocks() -> tuple[float, float, float]:
    return time.monotonic(), _own(), _all()


def _own() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def _all() -> float:
    user, nice, system, _, _, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


_AT_IMPORT = _clocks()
