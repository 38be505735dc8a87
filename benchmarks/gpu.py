"""Measures what needs a GPU, as a queue of items of at most 90 s each, the most valuable first.

    PYTHONPATH=src python benchmarks/gpu.py --seconds 540     # on a machine with a GPU
    PYTHONPATH=src:packages python benchmarks/gpu.py --out DIR   # rented, not installed
    PYTHONPATH=src python benchmarks/gpu.py --keep DIR/gpu.json  # at home again
    PYTHONPATH=src python benchmarks/gpu.py --dry-run         # on a CPU, at toy size

`gpu_items/__init__.py` lists the items. Each one is measured in a process of its own, so that a
crash or a hang loses only that item, and its result is on disk as soon as it is measured, in
`results/gpu/items`. An item is skipped if neither its script nor src/halfstep has changed since its
result. It runs from a source tree, without an installation.

A machine that returns nothing but a folder gets one file, `gpu.json` in `--out`: all results, how
each item ended, and the output of those that failed. `--keep` makes results of it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_items import ITEMS, Item
from gpu_items.document import commit, digest, keep
from gpu_items.queue import FAILED, Queue, is_fresh

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = Path(__file__).resolve().parent / "results" / "gpu" / "items"


def keep_all(path: Path, results: Path) -> str:
    """Make results of a `gpu.json`, and return what became of each item, a line each.

    A machine without git knows no commit. It is that of this tree if the hash is.
    """
    said = []
    known = {item.name: item for item in ITEMS}
    for name, document in json.loads(path.read_text())["items"].items():
        same = name in known and digest(known[name]) == document["hash"]
        if document["commit"] is None and same:
            document["commit"] = commit()
        kept = keep(document, results)
        said.append(
            f"{name}: {'kept' if kept else 'not kept, because it is a part and a whole is there'}"
            + ("" if same else "; it was measured with other files than those here")
        )
    return "\n".join(said)


def listing(items: Sequence[Item], results: Path) -> str:
    """Return the items: their limits, whether they are due, and what they answer."""
    return "\n".join(
        f"{item.name:14} {item.seconds:3} s  "
        f"{'unchanged' if is_fresh(item, results) else 'due':10} {item.answers}"
        for item in items
    )


def has_gpu() -> bool:
    """Tell whether CUDA finds a GPU, without importing torch."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--only", metavar="NAME,...", help="these items, in the order of the queue")
    made.add_argument(
        "--seconds",
        type=float,
        default=600,
        metavar="N",
        help="of the whole run (default: 600); an item that may not fit is not begun",
    )
    made.add_argument("--force", action="store_true", help="measure unchanged items too")
    made.add_argument("--out", type=Path, metavar="DIR", help="also write DIR/gpu.json")
    made.add_argument("--list", action="store_true", help="list the items, and measure none")
    made.add_argument("--keep", type=Path, metavar="FILE", help="make results of a gpu.json")
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    made.add_argument("--toy", action="store_true", help="at toy size, without results")
    made.add_argument(
        "--dry-run", action="store_true", help="--device cpu --toy --force, in one process"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the queue, and return the exit code: 1 if an item failed, 130 after a Ctrl-C."""
    line = parser()
    given = line.parse_args(arguments)
    names = [item.name for item in ITEMS]
    only = given.only.split(",") if given.only else names
    if unknown := [name for name in only if name not in names]:
        line.error(f"--only names {', '.join(unknown)}; allowed: {', '.join(names)}")
    items = [item for item in ITEMS if item.name in only]
    if given.list:
        print(listing(items, RESULTS))
        return 0
    if given.keep is not None:
        print(keep_all(given.keep, RESULTS))
        return 0
    device, toy = ("cpu", True) if given.dry_run else (given.device, given.toy)
    if device == "cpu" and not toy:
        line.error("--device cpu measures nothing of worth; write --dry-run")
    if device == "cuda" and not has_gpu():
        line.error("CUDA finds no GPU here; write --dry-run to try the items on a CPU")
    with contextlib.ExitStack() as stack:
        results = RESULTS
        if toy:
            results = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        queue = Queue(
            items,
            results,
            given.out,
            math.inf if given.dry_run else given.seconds,
            device,
            toy=toy,
            alone=not given.dry_run,
            force=given.force,
        )
        code = 0
        try:
            queue.run()
        except KeyboardInterrupt:
            code = 130
        print(queue.table())
    return code or int(any(each.state == FAILED for each in queue.ended))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main())
