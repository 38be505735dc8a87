import errno
import os
import shutil

import pytest
import torch

from halfstep import files
from halfstep.train.loop.loop import train
from halfstep.train.store import checkpoint, rotation
from halfstep.train.store.rotation import CheckpointWarning


def names(run):
    return sorted(each.name for each in (run / "checkpoints").iterdir())


def test_newest_few_stay_and_so_do_last_and_best(tmp_path, example):
    for step, named in ((3, ("last", "best")), (5, ()), (6, ("last",)), (9, ("last",))):
        assert rotation.save(tmp_path, example(step=step), keep=2, names=named)
    assert names(tmp_path) == ["best.pt", "last.pt", "step-00000006.pt", "step-00000009.pt"]
    steps = [checkpoint.load(checkpoint.path(tmp_path, name)).step for name in ("best", "last")]
    assert steps == [3, 9]
    assert [file.name for file in rotation.newest_first(tmp_path)] == names(tmp_path)[:1:-1]


def test_newest_is_by_number_and_not_by_name(tmp_path, example):
    for step in (99_999_999, 100_000_000):
        rotation.save(tmp_path, example(step=step), keep=2)
    found = rotation.newest_whole(tmp_path)
    assert found is not None
    assert found[1].step == 100_000_000


def test_same_step_may_be_saved_again(tmp_path, example):
    for loss in (0.5, 0.25):
        rotation.save(tmp_path, example(loss=loss), keep=2, names=("last",))
    assert names(tmp_path) == ["last.pt", "step-00000003.pt"]
    assert checkpoint.load(checkpoint.path(tmp_path, "last")).loss == 0.25


def test_without_links_they_are_copies(tmp_path, monkeypatch, example):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    rotation.save(tmp_path, example(), keep=1, names=("last",))
    rotation.save(tmp_path, example(step=4), keep=1)
    assert checkpoint.load(checkpoint.path(tmp_path, "last")).step == 3


def test_directory_without_checkpoints_has_no_newest(tmp_path, example):
    assert rotation.newest_whole(tmp_path) is None
    assert rotation.newest_first(tmp_path) == []


def test_full_disk_leaves_the_one_before_whole_and_warns(tmp_path, monkeypatch, example):
    rotation.save(tmp_path, example(), keep=1, names=("last",))

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.warns(CheckpointWarning, match=r"step 4 could not be saved: No space left on dev"):
        assert not rotation.save(tmp_path, example(step=4), keep=1, names=("last",))
    assert names(tmp_path) == ["last.pt", "step-00000003.pt"]
    found = rotation.newest_whole(tmp_path)
    assert found is not None
    assert found[1].step == 3


def test_run_on_a_disk_that_is_full_for_a_while_trains_on(
    tiny, finished_run, tmp_path, monkeypatch
):
    real, calls = checkpoint.write_atomically, []

    class Full:
        """A file that takes its first bytes and no more."""

        def __init__(self, file):
            self.file = file

        def write(self, content):
            if self.file.tell() + len(content) > 40_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(content)

        def flush(self):
            self.file.flush()

    def write_atomically(path, content):
        calls.append(None)
        on_full = len(calls) in {2, 3}
        real(path, (lambda file: content(Full(file))) if on_full else content)

    monkeypatch.setattr(checkpoint, "write_atomically", write_atomically)
    config = tiny("checkpoints={every_steps: 2, keep: 9}")
    with pytest.warns(CheckpointWarning, match=r"could not be saved") as caught:
        summary = train(config, tmp_path, quiet=True)
    assert sum(each.category is CheckpointWarning for each in caught) == 3
    assert summary.status == "finished"
    # Step 6 had the best validation so far; the next ones wait for a better one, at step 12.
    assert [name for name in names(tmp_path) if name.startswith("step")] == [
        f"step-{step:08d}.pt" for step in (2, 12)
    ]
    last = checkpoint.load(checkpoint.path(tmp_path, "last")).model
    whole = checkpoint.load(checkpoint.path(finished_run, "last")).model
    assert all(torch.equal(last[name], whole[name]) for name in whole)


def test_copied_run_directory_is_as_good(tmp_path, example):
    rotation.save(tmp_path / "a", example(), keep=1, names=("last", "best"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = rotation.newest_whole(tmp_path / "b")
    assert found is not None
    assert found[1].step == 3
