"""Cells that run one after the other in one process are those that ran in their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from halfstep.compare.cells.schedule import ThisMachine
from halfstep.compare.cells.worker import Worker
from halfstep.train.config.files import load
from halfstep.train.loop.loop import train
from halfstep.train.store import checkpoint

PROGRAM = """
import os, signal, sys, time
if __name__ == "__main__":
    what = sys.argv[1]
    print(os.getpid(), os.environ.get("GIVEN"))
    if what == "code":
        sys.exit(3)
    if what == "line":
        sys.exit("a reason")
    if what == "raises":
        raise LookupError("no such thing")
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "waits":
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            sys.exit(130)
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    made = Worker()
    yield made
    made.close()


def start(worker, what, **environment):
    with Path(f"{what}.out").open("wb") as out, Path(f"{what}.err").open("wb") as err:
        return worker.start(
            [sys.executable, "-m", "program", what],
            outputs=(out.fileno(), err.fileno()),
            environment=environment,
        )


def said(what, suffix="out"):
    return Path(f"{what}.{suffix}").read_text(encoding="utf-8")


def test_programs_run_in_one_process_until_one_of_them_dies(worker):
    codes = {what: start(worker, what).wait(60) for what in ("fine", "code", "line", "raises")}
    assert codes == {"fine": 0, "code": 3, "line": 1, "raises": 1}
    assert "a reason" in said("line", "err")
    assert "LookupError: no such thing" in said("raises", "err")
    pids = {said(what).split()[0] for what in codes}
    assert len(pids) == 1
    assert start(worker, "killed").wait(60) == -signal.SIGKILL
    assert start(worker, "again").wait(60) == 0
    assert said("again").split()[0] not in pids


def test_another_environment_has_another_process(worker):
    assert start(worker, "one", GIVEN="1").wait(60) == 0
    assert start(worker, "two", GIVEN="2").wait(60) == 0
    assert (said("one").split()[1], said("two").split()[1]) == ("1", "2")
    assert worker.start(["other"], outputs=(1, 2), environment={}) is None


def test_a_signal_ends_the_program_alone(worker):
    running = start(worker, "waits")
    while not said("waits"):
        time.sleep(0.01)
    assert running.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(0.01)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert start(worker, "fine").wait(60) == 0
    assert said("waits").split()[0] == said("fine").split()[0]


def test_seeds_in_a_worker_are_trained_as_in_processes_of_their_own(worker, tmp_path):
    tiny = [
        *("epochs=1", "batch_size=256", "data.resolution=8", "device=cpu", "probes=false"),
        *("model.args={layers: [1, 1, 0, 0], channels: [8, 16, 16, 16]}", "recipe=o2"),
    ]
    options = [each for option in tiny for each in ("--options", option)]
    for seed in (0, 1):
        command = [sys.executable, "-m", "halfstep", "train", "digits", *options, "--quiet"]
        command += ["--seed", str(seed), "--out", str(tmp_path / f"warm-{seed}")]
        with Path(os.devnull).open("wb") as out:
            running = worker.start(command, outputs=(out.fileno(), out.fileno()), environment={})
            assert running.wait(120) == 0
        train(load("digits", tiny, {"seed": seed}), tmp_path / f"alone-{seed}", quiet=True)
        warm, alone = (
            checkpoint.load(checkpoint.path(tmp_path / f"{kind}-{seed}", "last")).model
            for kind in ("warm", "alone")
        )
        assert all(warm[name].equal(values) for name, values in alone.items())


def test_cells_of_a_gpu_and_compiled_ones_run_in_the_worker_of_their_slot(make_grid):
    (cell,) = make_grid(("fp32",)).cells
    compiled = replace(cell, settings={**cell.settings, "model": {"compile": True}})
    several = replace(cell, settings={**cell.settings, "processes": 2})
    place = ThisMachine(("cuda:0", "cuda:1", "cpu"), lambda *_: [], python="server")
    assert isinstance(place._starter(cell, "cuda:0"), Worker)
    assert place._starter(cell, "cuda:0") is place._starter(cell, "cuda:0")
    assert place._starter(cell, "cuda:0") is not place._starter(cell, "cuda:1")
    assert place._starter(several, "cuda:0") is None
    assert place._starter(cell, "cpu") == "server"
    assert isinstance(place._starter(compiled, "cpu"), Worker)
    # Two runs at a time on one device cannot share a process.
    shared = ThisMachine(("cpu", "cpu"), lambda *_: [], python="server")
    assert shared._starter(compiled, "cpu") == "server"
