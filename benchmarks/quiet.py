"""Whether the machine was quiet while a benchmark ran, and results that only a quiet one replaces.

Figures of a machine that does something else meanwhile are wrong in a way that no median mends. So
each result says how many cores others kept busy, and one from a busy machine is not written over
one from a quiet one.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.files import json_text, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOWED = 0.15
"""Cores that others may keep busy on a quiet machine."""


@dataclass
class Watched:
    """What else the machine did.

    Attributes:
        others: Cores that other processes, and other guests of the host, kept busy on average.
    """

    others: float = 0.0

    @property
    def quiet(self) -> bool:
        """Whether that was next to nothing."""
        return self.others <= ALLOWED


@contextmanager
def watched() -> Iterator[Watched]:
    """Measure what others do while the block runs; children of this process must end in it."""
    seen = Watched()
    busy, own, began = _busy(), _own(), time.monotonic()
    yield seen
    elapsed = time.monotonic() - began
    seen.others = round(max(0.0, (_busy() - busy) - (_own() - own)) / elapsed, 3)


def write(path: Path, record: dict[str, Any], seen: Watched) -> bool:
    """Write a result with its `machine`, unless it would replace one of a quieter machine.

    Args:
        path: The JSON file.
        record: What was measured.
        seen: What else the machine did.

    Returns:
        Whether it was written.
    """
    said = f"others kept {seen.others} cores busy; a quiet machine has at most {ALLOWED}"
    before = json.loads(path.read_text())["machine"] if path.exists() else {"quiet": False}
    if before["quiet"] and not seen.quiet:
        sys.stderr.write(f"{path} is left as it is: {said}\n")
        return False
    machine = {"quiet": seen.quiet, "cores_of_others": seen.others}
    write_atomically(path, json_text({"machine": machine, **record}))
    sys.stdout.write(f"written to {path}: {said}\n")
    return True


def _busy() -> float:
    """Seconds of all cores since the start that somebody had: not idle, nor waiting for a disk."""
    numbers = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = numbers[:8]
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
