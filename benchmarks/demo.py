"""Times the demo of the README, and keeps what it found.

    python benchmarks/demo.py

The demo is the command between the marks `demo` of README.md, after its installation. It also runs
with two other sets of seeds, to see whether its answers depend on them. On a quiet machine, its
comparison replaces the one in docs/experiments/demo; then draw the README's pictures anew:

    python website/report_picture.py docs/experiments/demo
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import quiet_machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "demo.json"
KEPT = ROOT / "docs" / "experiments" / "demo"
FILES = ("comparison.json", "table.md", "report.html")
OTHERS = (10, 20)
"""The first seeds of the other sets."""


def command() -> list[str]:
    """Return the arguments of `halfstep` in the README's demo."""
    block = re.search(r"<!-- demo -->\n```bash\n(.*?)\n```", (ROOT / "README.md").read_text())
    if block is None:
        raise ValueError("README.md has no <!-- demo -->")
    return block[1].partition(".venv/bin/halfstep ")[2].split()


def run(arguments: list[str], folder: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """Run a comparison in a folder; return its comparison.json, and its seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    line = [sys.executable, "-m", "halfstep", *arguments, "--out", str(folder)]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = json.loads((folder / "comparison.json").read_text())
    return found, {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}


def answers(found: dict[str, Any]) -> dict[str, Any]:
    """Return the answer for each row of a comparison, with its difference in accuracy."""
    differences = {row["recipe"]: row["difference"] for row in found["rows"]}
    return {
        each["label"]: {
            "answer": each["answer"],
            "power": each["power"],
            **{name: differences[each["label"]][name] for name in ("mean", "low", "high")},
        }
        for each in found["verdicts"]
    }


def main() -> None:
    """Run the demo and the other seeds, and write the results."""
    line = command()
    with tempfile.TemporaryDirectory() as scratch, quiet_machine.watched() as seen:
        found, took = run(line, Path(scratch, "demo"))
        sets = [{"seeds": found["seeds"], "answers": answers(found)}]
        for first in OTHERS:
            seeds = [first + each for each in found["seeds"]]
            given = [*line, "--seeds", ",".join(map(str, seeds))]
            other, _ = run(given, Path(scratch, str(first)))
            sets.append({"seeds": seeds, "answers": answers(other)})
        kept = {name: Path(scratch, "demo", name).read_bytes() for name in FILES}
    document = {"command": "halfstep " + " ".join(line), **took, "sets": sets}
    quiet_machine.keep(RESULTS, document, seen)
    for name, content in kept.items():
        (KEPT / name).write_bytes(content)


if __name__ == "__main__":
    main()
