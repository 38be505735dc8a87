"""Measures the time of training for several values of OMP_NUM_THREADS and MKL_NUM_THREADS.

torch reads both variables when it is loaded, so each run is a separate process. The time is the
trainer's own figure, which excludes start-up, validation and checkpoints.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep.bench.arguments import parse_counts
from halfstep.bench.outcome import subject
from halfstep.bench.sweep import Quantity, Sweep
from halfstep.bench.training_process import HALFSTEP, training, write_config
from halfstep.bench.turns import take_turns
from halfstep.plurals import counted
from halfstep.show.units import duration
from halfstep.train.build.setup import set_up
from halfstep.train.environment import pick_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from halfstep.bench.outcome import Outcome
    from halfstep.train.config import Config


def bench(
    config: Config,
    *,
    options: Sequence[str],
    threads: str,
    steps: int | None,
    rounds: int,
    console: Console,
) -> Outcome:
    """Measure how long training takes with each number of threads.

    Args:
        config: The config to train.
        options: The overrides in `config`, to be printed.
        threads: Numbers of threads, separated by commas.
        steps: Optimizer steps to time; None for an epoch.
        rounds: The number of measurements of each setting.
        console: Prints the progress.

    Raises:
        UserError: If an argument is invalid, or a run fails.
    """
    counts = parse_counts("--threads", threads, least=1)
    device = pick_device(config.device)
    # Fails early if every run would fail.
    with set_up(config, device).engine:
        pass
    what = "an epoch" if steps is None else counted(steps, "step")
    quantity = Quantity(f"seconds of {what}", "less", "{:.3g}".format)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        course = ["epochs=1", "max_steps=null"]
        if steps is not None:
            course = [f"epochs={steps}", f"max_steps={steps}", f"val_every={steps}"]
        file = write_config(config, folder, f"device={device}", *course)
        figures = take_turns(
            counts,
            rounds,
            lambda count: train_seconds(file, count),
            label=lambda count: f"OMP_NUM_THREADS={count}",
            write=lambda seconds: f"{duration(seconds)} for {what}",
            console=console,
        )
    sweep = Sweep("OMP_NUM_THREADS", tuple(map(str, counts)), quantity)
    notes = [
        "MKL_NUM_THREADS has the same value. The time is for training alone, without start-up."
    ]
    return sweep.outcome(subject("threads", config.name, options, device), figures, notes)


def train_seconds(config: Path, threads: int) -> float:
    """Run a config file in a separate process, and return the seconds of training."""
    run = config.with_name("run")
    command = [*HALFSTEP, "train", str(config), "--out", str(run), "--quiet"]
    environment = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with training(command, config.parent, environment) as process:
        process.wait()
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    shutil.rmtree(run)
    return float(summary["train_seconds"])
