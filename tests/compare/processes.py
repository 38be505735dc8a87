"""Which processes a process has started, and whether they are gone; read from /proc."""

from __future__ import annotations

import time
from pathlib import Path


def below(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [process for child in map(int, children) for process in (child, *below(child))]


def is_gone(pid: int) -> bool:
    """Give a process half a minute to be gone; one that nobody has waited for is a zombie."""
    for _ in range(3000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False
