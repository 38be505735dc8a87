"""The one owner of `metrics.jsonl`."""

import errno
from types import SimpleNamespace

import pytest

from halfstep.train.store import metrics_log
from halfstep.train.store.metrics_log import MetricsLog


def written(run, *lines, goes_on=False):
    log = MetricsLog(run, goes_on=goes_on)
    for kind, step, epoch in lines:
        log.append(kind, {"step": step, "epoch": epoch, "loss": float("nan")})
    log.close()


def steps(run, kind=None):
    return [line["step"] for line in metrics_log.read(run, kind)]


def test_lines_are_read_by_kind(tmp_path):
    written(tmp_path, ("train", 1, 1), ("val", 1, 1))
    written(tmp_path, ("train", 2, 2), goes_on=True)
    assert metrics_log.exists(tmp_path)
    assert (steps(tmp_path), steps(tmp_path, "val")) == ([1, 1, 2], [1])
    assert metrics_log.read(tmp_path)[0]["loss"] == "nan"
    written(tmp_path, ("train", 7, 1))
    assert steps(tmp_path) == [7]


def test_what_is_no_whole_line_is_left_out(tmp_path):
    assert metrics_log.read(tmp_path) == []
    written(tmp_path, ("train", 1, 1))
    with (tmp_path / metrics_log.FILE).open("a") as file:
        file.write('[1]\n{"step": 2}\n\xff\n{"kind": "train", "step": 2, "epo')
    assert steps(tmp_path) == [1]


def test_a_validation_behind_the_checkpoint_is_made_again(tmp_path):
    written(tmp_path, ("train", 6, 1), ("val", 6, 1), ("train", 8, 2))
    metrics_log.cut_after(tmp_path, step=6, epochs=0)
    assert [line["kind"] for line in metrics_log.read(tmp_path)] == ["train"]


def test_lines_of_short_steps_are_written_together_and_others_at_once(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(metrics_log, "time", SimpleNamespace(monotonic=lambda: now[0]))
    log = MetricsLog(tmp_path, goes_on=False)

    def add(kind, step, after):
        now[0] += after
        log.append(kind, {"step": step, "epoch": 1})
        return steps(tmp_path)

    assert add("train", 1, after=0.0) == [1]
    assert add("train", 2, after=0.1) == [1]
    assert add("train", 3, after=0.15) == [1, 2, 3]
    assert add("train", 4, after=0.1) == [1, 2, 3]
    assert add("val", 4, after=0.0) == [1, 2, 3, 4, 4]
    assert add("train", 5, after=0.1) == [1, 2, 3, 4, 4]
    log.write_out()
    assert steps(tmp_path) == [1, 2, 3, 4, 4, 5]
    add("train", 6, after=0.1)
    log.close()
    assert steps(tmp_path) == [1, 2, 3, 4, 4, 5, 6]


def test_lines_that_a_full_disk_did_not_take_come_later_and_in_order(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path, goes_on=False)

    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "write_out", full)
        with pytest.raises(OSError, match="No space"):
            log.append("train", {"step": 1, "epoch": 1})
    log.append("train", {"step": 2, "epoch": 1})
    log.close()
    assert steps(tmp_path) == [1, 2]
