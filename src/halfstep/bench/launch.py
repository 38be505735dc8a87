"""Measures the time from starting several processes to the end of their first step.

It compares `torch.multiprocessing.spawn`, called by a program that imports torch, with torchrun's
launcher, which `halfstep train --processes` uses.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from halfstep.bench.outcome import subject
from halfstep.bench.sweep import Quantity, Sweep
from halfstep.bench.training_process import HALFSTEP, training, write_config
from halfstep.bench.turns import take_turns
from halfstep.errors import UserError
from halfstep.show.units import duration
from halfstep.train.build.setup import set_up
from halfstep.train.environment import pick_device, processors
from halfstep.train.store import metrics_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from halfstep.bench.outcome import Outcome
    from halfstep.train.config import Config

Way = Literal["spawn", "torchrun"]
WAYS: tuple[Way, ...] = ("spawn", "torchrun")
ONE_STEP = ("epochs=1", "max_steps=1", "log_every=1")
"""Config overrides for a run that ends after one step, and logs the step at once."""

_POLL_SECONDS = 0.01


def bench(
    config: Config, *, options: Sequence[str], processes: int, rounds: int, console: Console
) -> Outcome:
    """Measure how long processes take to start.

    Args:
        config: The config that the processes train.
        options: The overrides in `config`, to be printed.
        processes: The number of processes.
        rounds: The number of measurements of each way to start.
        console: Prints the progress.

    Raises:
        UserError: If an argument is invalid, or a run fails.
    """
    device = pick_device(config.device)
    # Fails early if every run would fail.
    with set_up(config, device).engine:
        pass
    with tempfile.TemporaryDirectory() as name:
        file = write_config(config, Path(name), f"device={device.type}", *ONE_STEP)
        figures = take_turns(
            WAYS,
            rounds,
            lambda way: seconds_to_first_step(file, way, processes),
            label=lambda way: f"{processes} processes by {way}",
            write=lambda seconds: f"{duration(seconds)} to the first step",
            console=console,
        )
    sweep = Sweep("start", WAYS, Quantity("seconds to the first step", "less", "{:.3g}".format))
    text = (
        f"{processes} processes, from the command to the end of the first optimizer step. "
        "halfstep train --processes starts them by torchrun."
    )
    return sweep.outcome(subject("launch", config.name, options, device), figures, [text])


def seconds_to_first_step(config: Path, way: Way, processes: int) -> float:
    """Return the seconds from starting processes to the end of their first step.

    Args:
        config: The file of a config with the overrides `ONE_STEP`.
        way: The way to start the processes.
        processes: The number of processes.

    Raises:
        UserError: If the run fails, or ends without a step.
    """
    run = config.with_name("run")
    arguments = ["train", str(config), "--out", str(run), "--quiet"]
    if way == "spawn":
        command = [sys.executable, "-m", "halfstep.bench.spawned", str(processes), *arguments]
    else:
        command = [*HALFSTEP, *arguments, "--processes", str(processes)]
    threads = str(max(1, processors() // processes))
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
    began = time.perf_counter()
    with training(command, config.parent, environment) as process:
        while not metrics_log.read(run, "train") and process.poll() is None:
            time.sleep(_POLL_SECONDS)
        seconds = time.perf_counter() - began
    done = bool(metrics_log.read(run, "train"))
    shutil.rmtree(run)
    if not done:
        raise UserError("a timed run ended without a training step")
    return seconds
