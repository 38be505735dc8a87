"""Times the start of halfstep: its help, its import, and a run of a comparison.

    python benchmarks/startup.py

Each round starts each program once, so that a slowdown of the machine affects all of them. The time
of a cell (a run of a comparison) is from the request for its process to the log of its first step:
it contains reading the data, building the model and one step. `halfstep train` is the same without
a server that has already imported the modules.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import quiet_machine

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "results" / "startup.json"
ROUNDS = 5
PROGRAM = [sys.executable, "-m", "halfstep"]
SHORT = ["--options", "epochs=1", "log_every=1", "data.resolution=8", "--device", "cpu"]
ADDED = (
    "import time, torch; t = time.perf_counter(); import halfstep; print(time.perf_counter() - t)"
)


def finished(*arguments: str) -> float:
    """Return the seconds of a whole run of Python with these arguments."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def added() -> float:
    """Return the seconds of the import of halfstep after that of torch."""
    run = subprocess.run([sys.executable, "-c", ADDED], check=True, capture_output=True)
    return float(run.stdout)


def has_begun(run: Path) -> bool:
    """Tell whether the first step of a run is logged."""
    metrics = run / "metrics.jsonl"
    return metrics.exists() and metrics.stat().st_size > 0


def alone() -> float:
    """Return the seconds from `halfstep train` to its first step."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [*PROGRAM, "train", "digits", *SHORT, "--out", f"{folder}/run"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not has_begun(Path(folder, "run")):
            assert process.poll() is None
            time.sleep(0.002)
        took = time.perf_counter() - start
        process.wait()
        return took


def cells() -> list[float]:
    """Return the seconds from the request for a cell to its first step, for three cells."""
    began: dict[str, float] = {}
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [*PROGRAM, "compare", "digits", "--recipes", "fp32,bf16,o2", "--seeds", "1"]
        command += SHORT
        process = subprocess.Popen([*command, "--out", f"{folder}/all"], stdout=subprocess.DEVNULL)
        while process.poll() is None:
            for cell in Path(folder, "all").glob("*-seed0"):
                if cell.name not in began and (cell / "stdout.log").exists():
                    began[cell.name] = time.perf_counter()
                if cell.name not in took and has_begun(cell / "run"):
                    took[cell.name] = time.perf_counter() - began[cell.name]
            time.sleep(0.002)
        assert process.returncode == 0
    return list(took.values())


def main() -> None:
    """Measure, print and write the results."""
    ways: dict[str, Callable[[], float]] = {
        "halfstep --help": lambda: finished("-m", "halfstep", "--help"),
        "import torch": lambda: finished("-c", "import torch"),
        "import torch, timm": lambda: finished("-c", "import torch, timm"),
        "import halfstep, after torch": added,
        "halfstep train, to its first step": alone,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    finished("-c", "import torch, timm, halfstep")  # reads all files into the page cache
    with quiet_machine.watched() as seen:
        for _ in range(ROUNDS):
            for name, measure in ways.items():
                seconds[name].append(measure())
        seconds["a cell of a comparison, to its first step"] = cells()
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    imports = medians["import torch, timm"]
    document = {
        "cores": os.cpu_count(),
        "seconds": {
            name: {
                "median": round(medians[name], 4),
                "low": round(min(each), 4),
                "high": round(max(each), 4),
                "to import torch, timm": round(medians[name] / imports, 3),
            }
            for name, each in seconds.items()
        },
    }
    quiet_machine.keep(RESULTS, document, seen)


if __name__ == "__main__":
    main()
