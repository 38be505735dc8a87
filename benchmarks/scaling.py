"""Measures images per second with 1, 2 and 4 processes, and the time to start the processes.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --processes 1 2 --rounds 1 --steps 5

All processes run on the CPU of this machine, with gloo. Each process has one OMP thread, or its
share of the cores. In each round, each way runs once. Ratios are relative to one process with one
thread in the same round, and the efficiency is the ratio over the number of cores in use. The speed
is the trainer's own figure, which does not include the start and the validation. "strong" scaling
keeps the number of images in a global batch, "weak" scaling the number per process.

The start is timed as in `halfstep bench launch`, from the start of the program to the end of the
first step: with `torch.multiprocessing.spawn` in a program that has imported torch, and with
torchrun. All files are already in the page cache, because the speeds are measured first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import quiet_machine
import torch

from halfstep.bench.launch import ONE_STEP, WAYS, seconds_to_first_step
from halfstep.bench.training_process import write_config
from halfstep.train.config.files import load
from halfstep.train.environment import processors

RESULTS = Path(__file__).parent / "results"
BATCH = 64
CONFIG = """
epochs: 1000
log_every: 1000000
val_every: 1000
device: cpu
tracking: []
data: {name: digits, resolution: 24}
model: {name: "timm:resnet18", args: {layers: [1, 1, 1, 1], channels: [16, 32, 64, 64]}}
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: {name: constant}
"""


def main() -> None:
    """Measure, print a table, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of a run")
    parser.add_argument("--out", type=Path, default=RESULTS / "scaling.json")
    given = parser.parse_args()
    given.processes = sorted({1, *given.processes})
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "scaling.yaml"
        config.write_text(CONFIG)
        first_step = load(str(config), ["batch_size=2", *ONE_STEP])
        start_config = write_config(first_step, Path(folder) / "start")
        found = [
            {
                "speed": speeds(config, given.processes, given.steps),
                "start": {
                    way: seconds_to_first_step(start_config, way, max(given.processes))
                    for way in WAYS
                },
            }
            for _ in range(given.rounds)
        ]
    rows = table(found, given.processes)
    for row in rows:
        print("  ".join(f"{value:>12.3f}" if isinstance(value, float) else f"{value!s:>12}"
                        for value in row.values()))  # fmt: skip
    start = {
        "processes": max(given.processes),
        "spawn_s": statistics.median(each["start"]["spawn"] for each in found),
        "torchrun_s": statistics.median(each["start"]["torchrun"] for each in found),
        "torchrun_to_spawn": statistics.median(
            each["start"]["torchrun"] / each["start"]["spawn"] for each in found
        ),
    }
    print(start)
    environment = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": processors(),
    }
    written = {"environment": environment, "rounds": given.rounds, "batch": BATCH, "speed": rows}
    given.out.parent.mkdir(exist_ok=True)
    quiet_machine.keep(given.out, {**written, "start": start, "raw": found})


def speeds(config: Path, counts: list[int], steps: int) -> dict[str, float]:
    """Return the images per second of each way, by name, from one run each."""
    found = {}
    for kind, count, threads in ways(counts):
        run = config.with_name("run")
        size = BATCH // count if kind == "strong" else BATCH
        options = ["--options", f"batch_size={size}", f"max_steps={steps}"]
        arguments = ["train", config, "--out", run, "--quiet", *options]
        launched(arguments, count, threads)
        summary = json.loads((run / "summary.json").read_text())
        found[f"{kind} {count} {threads}"] = summary["images_per_second"]
        shutil.rmtree(run)
    return found


def ways(counts: list[int]) -> list[tuple[str, int, int]]:
    """Return the kind, the number of processes and the threads per process of each way."""
    return [
        (kind, count, threads)
        for kind in ("strong", "weak")
        for count in counts
        for threads in sorted({1, max(1, processors() // count)})
    ]


def launched(arguments: list[object], count: int, threads: int) -> None:
    """Run halfstep in `count` processes with `threads` threads each, and wait for them."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", count]
    command = [sys.executable, "-m", *torchrun, "-m", "halfstep", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run(list(map(str, command)), check=True, capture_output=True,
                   env=environment)  # fmt: skip


def table(found: list[dict[str, dict[str, float]]], counts: list[int]) -> list[dict[str, object]]:
    """Return a row for each way, with the medians over the rounds of speed, ratio, efficiency."""
    rows: list[dict[str, object]] = []
    for kind, count, threads in ways(counts):
        first = f"{kind} 1 1"
        speed = [each["speed"][f"{kind} {count} {threads}"] for each in found]
        ratios = [own / each["speed"][first] for own, each in zip(speed, found, strict=True)]
        rows.append(
            {
                "scaling": kind,
                "processes": count,
                "threads_each": threads,
                "images_per_second": statistics.median(speed),
                "ratio": statistics.median(ratios),
                "efficiency": statistics.median(ratios) / min(count * threads, processors()),
            }
        )
    return rows


if __name__ == "__main__":
    main()
