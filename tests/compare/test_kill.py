"""A comparison that is killed at random points comes to the same table, times aside."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

import warm
from halfstep.compare.comparison import compare
from halfstep.compare.plan.grid import Cell, Plan

from .processes import below, is_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

TIMES = {
    "train_seconds",
    "wall_seconds",
    "images_per_second",
    "step_seconds_median",
    "step_seconds_p95",
    "peak_memory_bytes",
    "speed",
    "memory",
    "on_front",
    "verdicts",
    "environment",
    "core_wait_share",
    "disturbed",
    "checkpoint_bytes",  # which holds times
}

# Logs ten steps and a checkpoint after each, and goes on from the newest. What it comes to depends
# on every step, so that one that is lost or made twice shows.
STEPPING = """
import json, pathlib, sys

def write_atomically(path, text):
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").replace(path)

run, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2])
run.mkdir(exist_ok=True)
kept = run / "checkpoint.json"
step, state = json.loads(kept.read_text()) if kept.exists() else (0, 1 + seed)
while step < 10:
    step, state = step + 1, state * 1103515245 % 2**31
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"kind": "train", "step": step, "loss": state}) + "\\n")
    write_atomically(kept, json.dumps([step, state]))
summary = {"status": "finished", "best_accuracy": state / 2**31, "images_per_second": 1.0}
write_atomically(run / "summary.json", json.dumps(summary))
"""


def comparison(plan: Plan, script: Path) -> None:
    """Compare runs of a script, which is given a run directory and a seed."""

    def command(cell: Cell, device: str) -> list[str]:
        return [sys.executable, str(script), str(cell.run_directory), str(cell.seed)]

    compare(plan, command, Console(quiet=True))


def logged(directory: Path) -> int:
    """Count the lines that all runs have logged so far."""
    files = directory.glob("*/run/metrics.jsonl")
    return sum(len(file.read_bytes().splitlines()) for file in files)


def killed_at(point: int, directory: Path, program: Sequence[Any], *, alone: bool) -> bool:
    """Start a comparison and kill it once its runs have logged a number of lines.

    Args:
        point: How many lines.
        directory: The comparison's.
        program: The comparison, a function and its arguments.
        alone: Whether it is killed without its runs, which then have to end by themselves.

    Returns:
        Whether it was killed, and had not ended before.
    """
    process = warm.Warm(*program, session=True)
    while process.poll() is None and logged(directory) < point:
        time.sleep(0.001)
    if process.poll() is not None:
        return False
    if not alone:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # no session of its own yet, and therefore no run
            process.kill()
        process.wait()
        return True
    runs = below(process.pid)
    process.kill()
    assert all(map(is_gone, runs))
    said = {file: file.read_text() for file in directory.glob("*/stderr.log")}
    assert not any(said.values()), said
    return True


def without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: without_times(value) for key, value in content.items() if key not in TIMES}
    return [without_times(each) for each in content] if isinstance(content, list) else content


def table_of(directory: Path) -> Any:
    return without_times(json.loads((directory / "comparison.json").read_text()))


def campaign(
    directory: Path, program: Sequence[Any], kills: int, *, alone: bool = False
) -> tuple[Any, Any, int]:
    """Return the table of a comparison left alone, that of one often killed, and how often."""
    assert warm.run(*program).code == 0
    expected, lines = table_of(directory), logged(directory)
    directory.rename(directory.with_name("left-alone"))
    chance = random.Random(0)
    points = sorted(chance.randrange(lines) for _ in range(kills))
    done = sum(killed_at(point, directory, program, alone=alone) for point in points)
    assert warm.run(*program).code == 0
    return expected, table_of(directory), done


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_comparisons_come_to_the_table_of_one_left_alone(
    make_grid: Callable[..., Any], tmp_path: Path, kills: int
) -> None:
    grid = make_grid(("fp32", "fp16"), (0, 1))
    directory = grid.cells[0].directory.parent
    script = tmp_path / "stepping.py"
    script.write_text(STEPPING)
    program = (comparison, Plan(grid, directory, ("cpu",)), script)
    expected, found, killed = campaign(directory, program, kills)
    assert expected["complete"] is True
    assert found == expected
    assert killed > 0


# Says which process it is, keeps others out of its run directory, and waits to be told to finish.
WAITING = """
import fcntl, json, os, pathlib, sys, time
from halfstep.train.processes.launch import end_with_launcher

end_with_launcher()
run = pathlib.Path(sys.argv[1])
run.mkdir(exist_ok=True)
lock = open(run / "lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
(run / "pid").write_text(str(os.getpid()))
until = time.monotonic() + 60
while not (run.parents[2] / "finish").exists() and time.monotonic() < until:
    time.sleep(0.01)
(run / "summary.json").write_text(json.dumps({"status": "finished", "best_accuracy": 0.5}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_the_runs_of_a_comparison_that_is_killed_alone_end_and_run_once_again(
    make_grid: Callable[..., Any], tmp_path: Path
) -> None:
    grid = make_grid(("fp32", "fp16"))
    directory = grid.cells[0].directory.parent
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    program = (comparison, Plan(grid, directory, ("cpu", "cpu")), script)
    process = warm.Warm(*program)
    pids = [cell.run_directory / "pid" for cell in grid.cells]
    while not all(file.exists() and file.read_text() for file in pids):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    assert all(is_gone(int(file.read_text())) for file in pids)
    (tmp_path / "finish").touch()
    assert warm.run(*program).code == 0
    assert json.loads((directory / "comparison.json").read_text())["complete"] is True


TRAININGS = ["compare", "digits", "--recipes", "fp32,fp16", "--seeds", "2", "--device", "cpu"]
TRAININGS += ["--out", "compared", "--options", "epochs=3", "data.resolution=8", "log_every=1"]
TRAININGS += ["model.args={channels: [8, 8, 8, 8]}", "checkpoints.every_steps=5"]


@pytest.mark.slow
def test_killed_trainings_come_to_the_table_of_trainings_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (warm.halfstep, *TRAININGS, "batch_size=64")
    monkeypatch.chdir(tmp_path)
    expected, found, killed = campaign(tmp_path / "compared", program, kills=10)
    assert expected["complete"] is True
    assert found == expected
    assert killed >= 5


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_trainings_whose_comparison_is_killed_end_and_come_to_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = (
        ["batch_size=64", "data.workers=2"],
        ["batch_size=32", "--processes", "2"],
    )
    for number, more in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        program = (warm.halfstep, *TRAININGS, *more)
        expected, found, killed = campaign(folder / "compared", program, kills=6, alone=True)
        assert expected["complete"] is True
        assert found == expected
        assert killed >= 3
