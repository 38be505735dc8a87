"""Measures how much other programs used the machine during a benchmark, and writes its result.

A benchmark calls `keep` with its result. `keep` adds the share of the cores that other programs
used. If the share is too large, it does not replace a committed result. The share is measured since
the import of this module, or over the block of `watched()`.
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
"""The largest share of all cores that other programs may use."""


@dataclass
class Watched:
    """The load of the machine over a block.

    Attributes:
        wall: Elapsed seconds.
        own: CPU seconds of this process, and of its child processes that have ended.
        all: CPU seconds of all processes, and of other guests of the same host.
    """

    wall: float = 0.0
    own: float = 0.0
    all: float = 0.0

    @property
    def others(self) -> float:
        """The share of all cores that other programs used, from 0 to 1."""
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
    """Print a result and write it, except if the machine was busy and the file already exists.

    Args:
        results: The file of the result.
        document: The content of the result.
        seen: The load during the measurement; default: the load since the import of this module.

    Raises:
        SystemExit: If the result is not written, with the reason.
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
