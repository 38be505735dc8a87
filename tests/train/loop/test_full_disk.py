"""Disks that fill up: a run claims nothing that no checkpoint holds, and makes again what is lost.

A write that fails is injected here; the campaign fills real file systems. Checkpoints are written
in the background, where an error is not raised where it happens.
"""

import errno
import random
import re
import subprocess
import warnings
from contextlib import contextmanager
from dataclasses import replace

import file_systems
import pytest
from sameness import assert_same_run, lines

from halfstep.cli import main
from halfstep.errors import UserError
from halfstep.train.loop import loop
from halfstep.train.loop.loop import train
from halfstep.train.store import checkpoint, metrics_log, rotation, run_directory
from halfstep.train.store.metrics_log import MetricsLog
from halfstep.train.store.rotation import CheckpointWarning
from halfstep.train.store.run_directory import read_summary
from halfstep.train.task import metrics

pytestmark = pytest.mark.usefixtures("in_background")

RUNS = 100
ROOM = "size=64m"
# Bytes between which a disk is: a run needs 2.4 million, and cannot even begin with the least.
MOST, LEAST = 3_000_000, 8_192

WRITES = {
    "checkpoint": (checkpoint, "save"),
    "name": (rotation, "link"),
    "tables": (metrics, "write_tables"),
    "metrics": (MetricsLog, "write_out"),
    "summary": (run_directory, "write_summary"),
}


@pytest.fixture
def full(monkeypatch):
    """Let one kind of write fail from its n-th call on, for so many calls."""

    @contextmanager
    def disk(kind, first, calls=10**6):
        owner, name = WRITES[kind]
        real, seen = getattr(owner, name), []

        def write(*args, **given):
            seen.append(None)
            if first <= len(seen) < first + calls:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **given)

        with monkeypatch.context() as patch:
            patch.setattr(metrics_log, "EVERY_S", 0.0)  # each line is a write of its own
            patch.setattr(owner, name, write)
            yield

    return disk


def assert_claims_only_what_is_there(run):
    """Compare the summary, if there is one, with the checkpoints and the metrics."""
    found = read_summary(run)
    if found is None:
        return
    best, last = (checkpoint.load(checkpoint.path(run, name)) for name in ("best", "last"))
    assert (best.epoch, best.accuracy) == (found["best_epoch"], found["best_accuracy"])
    assert (last.epoch, last.accuracy) == (found["epochs"], found["final_accuracy"])
    assert last.step == found["steps"]
    vals = [line["epoch"] for line in lines(run) if line["kind"] == "val"]
    assert vals == list(range(1, found["epochs"] + 1))


# The checkpoints of the pictures come after steps 2, 3, 4, 6, 8 and 9.
@pytest.mark.parametrize(
    ("kind", "first", "left"),
    [
        ("checkpoint", 6, "checkpoints/last.pt could not be written; .*from step-00000008.pt"),
        ("checkpoint", 2, "best.pt and .*last.pt could not be written; .*from step-00000002.pt"),
        (
            "checkpoint",
            1,
            "best.pt and .*last.pt could not be written; .*starts from the beginning",
        ),
        ("name", 1, "best.pt and .*last.pt could not be written; .*from step-00000003.pt"),
        ("tables", 1, "best.pt and .*last.pt could not be written; .*from step-00000002.pt"),
        ("metrics", 9, "last.pt could not be written; .*from step-0000000[46].pt"),
        ("summary", 1, r"summary.json could not be written \(No space left.*step-00000009.pt"),
    ],
)
def test_full_disk_ends_with_an_error_and_a_resume_makes_what_is_missing(
    pictures, whole, full, tmp_path, kind, first, left
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        with full(kind, first), pytest.raises(UserError, match=left):
            train(pictures(), tmp_path, quiet=True)
    assert read_summary(tmp_path) is None
    train(pictures(), tmp_path, quiet=True, go_on="auto")
    assert_claims_only_what_is_there(tmp_path)
    assert_same_run(tmp_path, whole)
    for name in ("classes.csv", "confusion.csv"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()


def test_nothing_newer_is_saved_while_the_best_validation_is_in_no_checkpoint(
    pictures, full, tmp_path, monkeypatch
):
    """Or a resume would go on behind it, and its weights would be lost for good."""
    real, calls = loop.validate, []

    def worse_each_time(setup):
        calls.append(None)
        return replace(real(setup), accuracy=1 / len(calls))

    monkeypatch.setattr(loop, "validate", worse_each_time)
    with (
        full("checkpoint", 2, calls=1),
        pytest.warns(CheckpointWarning) as caught,
        pytest.raises(UserError, match=r"best.pt and .*last.pt could not be written"),
    ):
        train(pictures(), tmp_path, quiet=True)
    said = [str(each.message) for each in caught if each.category is CheckpointWarning]
    unsaved, halted = said
    assert unsaved == (
        "the checkpoint of step 3 could not be saved: No space left on device; the newest one is "
        "step-00000002.pt"
    )
    assert halted == (
        "best.pt of epoch 1 could not be saved; until a better best.pt is saved, no newer "
        "checkpoint is written, so --resume auto repeats that epoch"
    )
    assert [file.name for file in rotation.newest_first(tmp_path)] == ["step-00000002.pt"]


def test_disk_that_was_full_for_a_while_is_no_matter_in_the_end(pictures, whole, full, tmp_path):
    with (
        full("checkpoint", 3, calls=1),
        full("metrics", 1, calls=2),
        pytest.warns(CheckpointWarning),
    ):
        train(pictures(), tmp_path, quiet=True)
    assert_same_run(tmp_path, whole)


def test_warning_before_the_first_checkpoint_says_that_there_is_none(tmp_path, example, full):
    with full("checkpoint", 1), pytest.warns(CheckpointWarning, match="there is none in the run"):
        rotation.save(tmp_path, example(), keep=1)


def test_interrupted_run_says_what_its_last_checkpoint_really_holds(
    pictures, full, tmp_path, monkeypatch
):
    real = loop.validate

    def stop_in_the_second_epoch(setup):
        if setup.engine.steps > 3:
            raise KeyboardInterrupt
        return real(setup)

    monkeypatch.setattr(loop, "validate", stop_in_the_second_epoch)
    with (
        full("checkpoint", 1),
        pytest.warns(CheckpointWarning),
        pytest.raises(KeyboardInterrupt, match=r"in epoch 2; .*; no finished epoch was saved$"),
    ):
        train(pictures(), tmp_path, quiet=True)


def filled(config, run, size, whole, capsys):
    """Train on a disk of a size, make room, go on; return the exit code on the full disk."""
    command = ["train", str(config), "--out", str(run), "--quiet", "--resume", "auto"]
    with file_systems.of_size(run, size), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = main(command)
        said = capsys.readouterr().err
        assert "Traceback" not in said
        complete = read_summary(run) is not None
        assert complete == (code == 0), said
        assert_claims_only_what_is_there(run)
        begins = re.search(r"continues from (\S+)", said)
        assert not begins or (run / "checkpoints" / begins[1]).is_file()
        subprocess.run(["mount", "-o", f"remount,{ROOM}", run], check=True)
        assert main(command) == 0, capsys.readouterr().err
        capsys.readouterr()
        assert_claims_only_what_is_there(run)
        assert_same_run(run, whole)
    run.rmdir()
    return code


@pytest.mark.parametrize("runs", [2, pytest.param(RUNS, marks=pytest.mark.slow)])
def test_runs_on_disks_of_any_size_end_as_one_with_room(
    pictures_file, whole, tmp_path, capsys, runs
):
    chance = random.Random(1)
    sizes = [chance.randrange(LEAST, MOST) // 4096 * 4096 for _ in range(runs)]
    codes = {filled(pictures_file, tmp_path / "disk", size, whole, capsys) for size in sizes}
    if runs == RUNS:
        assert codes == {0, 2}, "some complete, some not"
