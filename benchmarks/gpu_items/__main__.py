"""Measures one item in a process of its own; `benchmarks/gpu.py` starts it, and ends it in time."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from gpu_items import At, Item
from gpu_items.document import measure

SPARE = 4.0
"""Seconds before its end in which an item begins nothing, for the start of the process too."""


def main() -> None:
    """Measure the item that the arguments describe."""
    fields, device, toy, folder = sys.argv[1:]
    item = Item(**json.loads(fields))
    deadline = time.monotonic() + item.seconds - SPARE
    measure(item, At(device, toy == "toy", deadline), Path(folder))


if __name__ == "__main__":
    main()
