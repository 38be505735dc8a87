"""Measures how much CPU time whole programs take under `halfstep doctor`, and where.

Each program in `cost_programs` has the shape of the training of a well-known library or project. It
runs in a process of its own, without and with doctor in turns, for a short and for a long training.
The time is the CPU time of the process and its children on one thread, so other programs hardly
change it. A figure is the smallest of the rounds. The programs print their CPU time when they have
imported their libraries, and at their end. So the time that doctor adds is split into three parts:

- start: imports, until the program begins to train;
- watch: the training, of which the figure is given per step, as the difference between the two
  lengths;
- end: after the program, when doctor examines the last steps and reports.

halfstep is compiled to bytecode first, as an installation does it.

    pip install transformers accelerate lightning           # for two of the programs
    python benchmarks/doctor_programs_cost.py               # half an hour
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import docs_table
import quiet_machine
import torch

import halfstep
from halfstep.train.environment import describe

HERE = Path(__file__).parent
PROGRAMS = HERE / "cost_programs"
RESULTS = HERE / "results" / "doctor_programs_cost.json"
NAMES = {
    "gpt": "GPT by a plain loop, as nanoGPT",
    "detector": "detector, as ultralytics",
    "unet3d": "3D U-Net, as MONAI",
    "clip": "two towers, as open_clip",
    "diffusion": "diffusion with an EMA, as diffusers",
    "hf_trainer": "GPT-2 by transformers' Trainer",
    "lightning_trainer": "ResNet-18 by Lightning's Trainer",
}
NEEDS = {"hf_trainer": ("transformers", "accelerate"), "lightning_trainer": ("lightning",)}
LENGTHS = (9, 100)
FOUND_NOTHING = "doctor: nothing found"


@dataclass(frozen=True)
class Run:
    """CPU seconds of one run of a program.

    Attributes:
        start: Until the program begins to train.
        train: Of the training.
        end: After the program.
    """

    start: float
    train: float
    end: float

    @property
    def total(self) -> float:
        """The CPU seconds of the whole run."""
        return self.start + self.train + self.end


@dataclass(frozen=True)
class Row:
    """The cost of doctor for one program at one length.

    Attributes:
        program: The file of the program.
        steps: Number of optimizer steps.
        plain: CPU seconds without doctor.
        ratio: CPU time with doctor, relative to that without it.
        start: CPU seconds that doctor adds before the training.
        watch: CPU seconds that doctor adds in the training.
        end: CPU seconds that doctor adds after the program.
    """

    program: str
    steps: int
    plain: float
    ratio: float
    start: float
    watch: float
    end: float


def run(program: str, steps: int, *, doctor: bool) -> tuple[Run, str]:
    """Run a program.

    Args:
        program: The file of the program, without its suffix.
        steps: Number of optimizer steps.
        doctor: Whether the program runs under doctor.

    Returns:
        The CPU seconds of the run, and what it wrote to stderr.

    Raises:
        RuntimeError: If the program fails.
    """
    watch = ["-m", "halfstep.doctor"] if doctor else []
    command = [sys.executable, *watch, str(PROGRAMS / f"{program}.py"), str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    before = os.times()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    after = os.times()
    marks = dict(re.findall(r"^cpu (\w+) ([\d.]+)$", done.stderr, re.MULTILINE))
    if done.returncode or {*marks} != {"train", "end"}:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    total = (after[2] + after[3]) - (before[2] + before[3])
    train, end = float(marks["train"]), float(marks["end"])
    return Run(train, end - train, total - end), done.stderr


def measure(program: str, steps: int, rounds: int) -> Row:
    """Measure one program at one length.

    Args:
        program: The file of the program, without its suffix.
        steps: Number of optimizer steps.
        rounds: How often it runs without and with doctor.
    """
    plain, watched = [], []
    for _ in range(rounds):
        plain.append(run(program, steps, doctor=False)[0])
        found, said = run(program, steps, doctor=True)
        watched.append(found)
        if FOUND_NOTHING not in said:
            print(said[-1500:], file=sys.stderr)
    one, two = (min(each, key=lambda run: run.total) for each in (plain, watched))
    return Row(
        program,
        steps,
        plain=round(one.total, 2),
        ratio=round(two.total / one.total, 3),
        start=round(two.start - one.start, 2),
        watch=round(two.train - one.train, 2),
        end=round(two.end - one.end, 2),
    )


def table(record: dict[str, Any]) -> list[str]:
    """Return the table of the docs: a line for each program."""
    rows, (short, long) = record["rows"], LENGTHS
    times = f"CPU seconds, {short} / {long} steps"
    lines = [
        f"| program | {times} | with doctor | start | watch, per step | end |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, title in NAMES.items():
        mine = {each["steps"]: each for each in rows if each["program"] == name}
        if len(mine) == len(LENGTHS):
            a, b = mine[short], mine[long]
            per_step = 1000 * (b["watch"] - a["watch"]) / (long - short)
            lines.append(
                f"| {title} | {a['plain']:.1f} / {b['plain']:.1f} | {a['ratio']:.2f} / "
                f"{b['ratio']:.2f} | {b['start']:.1f} s | {per_step:.1f} ms "
                f"| {a['end']:.1f} / {b['end']:.1f} s |"
            )
    return lines


def main() -> None:
    """Measure the programs, and write the result and the table of the docs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="programs to measure again, with commas")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    compileall.compile_dir(Path(halfstep.__file__).parent, quiet=2)
    rows = []
    for name in given.only.split(",") if given.only else [*NAMES]:
        missing = [each for each in NEEDS.get(name, ()) if not importlib.util.find_spec(each)]
        if missing:
            print(f"{name} is left out: {' and '.join(missing)} not installed")
        for steps in () if missing else LENGTHS:
            rows.append(asdict(measure(name, steps, given.rounds)))
            print(rows[-1], flush=True)
    if not given.dry:
        keep(rows, given.rounds)


def keep(
    rows: list[dict[str, Any]], rounds: int, seen: quiet_machine.Watched | None = None
) -> None:
    """Write rows in place of earlier ones of the same programs, and the table of the docs.

    Args:
        rows: The rows.
        rounds: How often each program ran.
        seen: The load during the measurement; default: the load since the start of this script.
    """
    before = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    known = {(each["program"], each["steps"]): each for each in (*before, *rows)}
    made = [known[key] for key in sorted(known)]
    record = {
        "environment": describe(torch.device("cpu")),
        "rounds": rounds,
        **{f"median of {steps} steps": _median(made, steps) for steps in LENGTHS},
        "rows": made,
    }
    quiet_machine.keep(RESULTS, record, seen)
    docs_table.put("doctor.md", "programs cost", table(record))


def _median(rows: list[dict[str, Any]], steps: int) -> float:
    return float(statistics.median(each["ratio"] for each in rows if each["steps"] == steps))


if __name__ == "__main__":
    main()
