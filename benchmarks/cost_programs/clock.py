"""Prints the CPU seconds of a program at points of its run, for `doctor_programs_cost.py`."""

from __future__ import annotations

import os
import sys


def mark(name: str) -> None:
    """Print the CPU seconds of this process and of its ended children, on a line of their own.

    Args:
        name: What the program begins now: "train" or "end".
    """
    times = os.times()
    print(f"cpu {name} {sum(times[:4]):.4f}", file=sys.stderr, flush=True)
