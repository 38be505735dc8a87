"""Checkpoints that are written while the run trains on.

Kills and full disks have files of their own, which write in the background, too.
"""

import json
import os
import signal
import threading
import time

import pytest
from sameness import assert_same_run, same

from halfstep import Observer
from halfstep.train.loop import saving
from halfstep.train.loop.loop import train
from halfstep.train.loop.saving import CheckpointWriter
from halfstep.train.run.signals import Stopped
from halfstep.train.store import background, checkpoint, rotation
from halfstep.train.store.run_directory import read_summary

FIELDS = ("model", "averaged", "engine", "schedule", "step", "batch")


class Steps(Observer):
    """Does something after every step of a run."""

    def __init__(self, act):
        self._act = act

    def stepped(self, step, result):
        self._act(step)


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory):
    """A run whose checkpoints, all of which are kept, were written while it waited."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train(pictures("checkpoints.keep=9"), run, quiet=True)
    return run


@pytest.fixture
def slow(monkeypatch, in_background):
    """Let every write take its time."""
    real = checkpoint._write

    def write(state, file):
        time.sleep(0.05)
        real(state, file)

    monkeypatch.setattr(checkpoint, "_write", write)


def steps(run):
    return [int(file.stem.removeprefix("step-")) for file in rotation.newest_first(run)]


@pytest.mark.usefixtures("in_background")
def test_run_trains_on_and_the_checkpoint_is_that_of_its_step(
    pictures, whole, tmp_path, monkeypatch
):
    """The first one, of step 2, is not written before step 3; the run would wait for ever."""
    real, trained_on, waited = checkpoint._write, threading.Event(), []

    def write(state, file):
        waited.append(trained_on.wait(30))
        real(state, file)

    monkeypatch.setattr(checkpoint, "_write", write)
    run = tmp_path / "run"
    observer = Steps(lambda step: trained_on.set() if step == 3 else None)
    train(pictures("checkpoints.keep=9"), run, quiet=True, observers=[observer])
    assert all(waited)
    assert_same_run(run, whole)
    assert steps(run) == steps(whole) == [9, 8, 6, 4, 3, 2]
    for step in steps(run):
        one, other = (checkpoint.load(rotation.path(each, step)) for each in (run, whole))
        assert [name for name in FIELDS if not same(getattr(one, name), getattr(other, name))] == []
        assert same(one.rng["torch"], other.rng["torch"])


def test_small_checkpoint_takes_no_thread(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "Background", None)
    train(pictures("epochs=1"), tmp_path, quiet=True)


@pytest.mark.usefixtures("in_background")
def test_one_is_written_at_a_time(pictures, tmp_path, monkeypatch):
    """Each one is still being written when the next one is due, but for the last."""
    due, real_save, real_write = threading.Event(), CheckpointWriter.save, checkpoint._write
    writing, at_once = [], []

    def save(*args, **given):
        due.set()
        real_save(*args, **given)

    def write(state, file):
        writing.append(None)
        at_once.append(len(writing))
        due.clear()
        due.wait(0.3)
        time.sleep(0.05)
        real_write(state, file)
        writing.pop()

    monkeypatch.setattr(CheckpointWriter, "save", save)
    monkeypatch.setattr(checkpoint, "_write", write)
    train(pictures("epochs=1", "checkpoints.every_steps=1"), tmp_path, quiet=True)
    assert at_once == [1] * 3


@pytest.mark.usefixtures("slow")
def test_lines_up_to_a_checkpoint_are_on_the_disk_before_it(pictures, tmp_path, monkeypatch):
    real, seen = checkpoint.save, {}

    def save(file, state):
        seen[state.step] = (tmp_path / "metrics.jsonl").read_text()
        real(file, state)

    monkeypatch.setattr(checkpoint, "save", save)
    train(pictures("log_every=1"), tmp_path, quiet=True)
    in_the_end = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert sorted(seen) == [2, 3, 4, 6, 8, 9]
    for step, text in seen.items():
        before = [line for line in in_the_end if json.loads(line)["step"] <= step]
        assert text.splitlines()[: len(before)] == before


@pytest.mark.usefixtures("in_background")
def test_no_process_is_forked_while_a_checkpoint_is_written(pictures, tmp_path, monkeypatch):
    """The worker of validation starts while that of step 2 is being written, for it waits."""
    real_fork, real_write = os.fork, checkpoint._write
    forks, wanted = [], threading.Event()

    def writing():
        return sum(each.is_alive() for each in background._threads)

    def fork():
        before = writing()
        if before:
            wanted.set()
        child = real_fork()
        forks.append((before, writing()))
        return child

    def write(state, file):
        assert wanted.wait(30)
        real_write(state, file)

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(checkpoint, "_write", write)
    train(pictures("epochs=1", "data.workers=1"), tmp_path, quiet=True)
    assert forks == [(0, 0), (1, 0)]


@pytest.mark.usefixtures("in_background")
def test_error_of_a_write_ends_the_run_at_the_next_line_of_figures(pictures, tmp_path, monkeypatch):
    def refuse(*_):
        raise RuntimeError("of torch")

    trained = []

    def note(step):
        trained.append(step)
        if step == 3:
            background.wait()

    monkeypatch.setattr(checkpoint, "save", refuse)
    config = pictures("accumulate=1", "checkpoints.every_steps=2", "log_every=1")
    with pytest.raises(RuntimeError, match="of torch"):
        train(config, tmp_path, quiet=True, observers=[Steps(note)])
    assert trained == [1, 2, 3]


@pytest.mark.usefixtures("in_background")
def test_error_of_the_last_write_is_not_lost(pictures, tmp_path, monkeypatch):
    real = checkpoint.save

    def save(file, state):
        if state.step == 3:
            raise RuntimeError("of torch")
        real(file, state)

    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(RuntimeError, match="of torch"):
        train(pictures("epochs=1"), tmp_path, quiet=True)
    assert read_summary(tmp_path) is None


@pytest.mark.parametrize(
    ("number", "times", "stopped", "left"),
    [
        (signal.SIGTERM, 1, Stopped, 5),
        (signal.SIGINT, 1, KeyboardInterrupt, 5),
        (signal.SIGINT, 2, KeyboardInterrupt, 4),
    ],
)
@pytest.mark.usefixtures("slow")
def test_signal_waits_for_the_checkpoint_that_is_being_written(
    pictures, whole, tmp_path, number, times, stopped, left
):
    def ask(step):
        for _ in range(times if step == 5 else 0):
            signal.raise_signal(number)

    with pytest.raises(stopped, match=rf"resume auto continues from step-0000000{left}.pt"):
        train(pictures("checkpoints.keep=9"), tmp_path, quiet=True, observers=[Steps(ask)])
    assert not background._threads
    assert steps(tmp_path)[0] == left
    assert not list(tmp_path.rglob("*.tmp"))
    train(pictures("checkpoints.keep=9"), tmp_path, quiet=True, go_on="auto")
    assert_same_run(tmp_path, whole)


@pytest.mark.usefixtures("slow")
def test_run_that_fails_leaves_its_directory_when_the_checkpoint_is_written(pictures, tmp_path):
    def fail(step):
        if step == 5:
            raise LookupError("of an observer")

    with pytest.raises(LookupError):
        train(pictures(), tmp_path, quiet=True, observers=[Steps(fail)])
    assert not background._threads
    assert steps(tmp_path)[0] == 4
    rotation.newest_whole(tmp_path)


@pytest.mark.usefixtures("slow")
def test_whoever_reads_the_newest_checkpoint_waits_for_it(pictures, tmp_path):
    read = []

    def look(step):
        newest = rotation.newest_whole(tmp_path)
        read.append((step, newest and newest[1].step))

    train(pictures(), tmp_path, quiet=True, observers=[Steps(look)])
    assert read == [(1, None), (2, None), (3, 2), (4, 3), (5, 4), (6, 4), (7, 6), (8, 6), (9, 8)]
