import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from halfstep.errors import UserError
from halfstep.train.config.files import load
from halfstep.train.store import replaced, run_directory


@pytest.mark.parametrize(
    ("options", "tag", "place"),
    [
        ((), None, "runs/tiny/fp32-seed0"),
        (("seed=3", "recipe=bf16+tf32"), None, "runs/tiny/tf32+bf16-seed3"),
        (("recipe={base: fp16, loss_scale: {init: 8}}",), None, "runs/tiny/fp16_-seed0"),
        (("name=a/b",), "try.1", "runs/a/b/try.1"),
    ],
)
def test_runs_are_filed_under_config_and_tag_or_recipe_and_seed(tiny, options, tag, place):
    assert run_directory.place(tiny(*options), tag) == Path(place)


@pytest.mark.parametrize("tag", ["", "..", "a/b", "-/x", "a b"])
def test_tag_that_cannot_name_a_folder_is_refused(tiny, tag):
    with pytest.raises(UserError, match=r"--tag is .*; write --tag baseline"):
        run_directory.place(tiny(), tag)


@pytest.fixture
def earlier(tiny, tmp_path):
    """Leave what a run leaves: a config, metrics, a checkpoint, and a summary if it has ended."""

    def left(*, finished, checkpoints=True):
        run_directory.prepare(tmp_path, tiny(), {})
        (tmp_path / "metrics.jsonl").write_text("a line")
        if checkpoints:
            (tmp_path / "checkpoints").mkdir()
            (tmp_path / "checkpoints" / "best.pt").write_text("weeks of work")
        if finished:
            (tmp_path / "summary.json").write_text("{}")
        return tmp_path

    return left


@pytest.mark.parametrize(
    ("finished", "options", "auto", "said"),
    [
        (True, (), False, "holds a finished run; write --resume auto to take its result, --out"),
        (
            True,
            ("epochs=9",),
            False,
            "holds a finished run of another config; write --out with another dir",
        ),
        (
            True,
            ("epochs=9",),
            True,
            "holds a finished run of another config; write --out with another dir",
        ),
        (False, (), False, "of a run that has not finished; write --resume auto to continue it"),
        (
            False,
            ("epochs=9",),
            False,
            "that has not finished of another config; write --out with another dir",
        ),
        (False, (), True, "of a run that has not finished; write --out .*, or --overwrite to rep"),
    ],
)
def test_run_with_checkpoints_is_not_replaced_unasked(tiny, earlier, finished, options, auto, said):
    run = earlier(finished=finished)
    with pytest.raises(UserError, match=said):
        run_directory.refuse_to_replace(run, tiny(*options), auto=auto)


def test_run_that_left_no_checkpoint_is_only_kept_if_it_has_ended(tiny, earlier):
    run = earlier(finished=False, checkpoints=False)
    for auto in (True, False):
        run_directory.refuse_to_replace(run, tiny("epochs=9"), auto=auto)
    run = earlier(finished=True, checkpoints=False)
    run_directory.refuse_to_replace(run, tiny(), auto=True)
    with pytest.raises(UserError, match="holds a finished run; write"):
        run_directory.refuse_to_replace(run, tiny(), auto=False)
    (run / "config.yaml").unlink()
    with pytest.raises(UserError, match="finished run of another config"):
        run_directory.refuse_to_replace(run, tiny(), auto=True)


def test_replaced_run_lies_aside_until_the_new_one_has_a_checkpoint(tiny, earlier):
    run = earlier(finished=True)
    run_directory.prepare(run, tiny("epochs=9"), {})
    assert load(str(run / "config.yaml")) == tiny("epochs=9")
    assert load(str(run / "replaced" / "config.yaml")) == tiny()
    assert (run / "replaced" / "checkpoints" / "best.pt").read_text() == "weeks of work"
    assert not (run / "summary.json").exists()
    # The new one dies without a checkpoint, and the next one too.
    run_directory.prepare(run, tiny("epochs=8"), {})
    assert (run / "replaced" / "checkpoints" / "best.pt").exists()
    replaced.let_go(run)
    assert sorted(each.name for each in run.iterdir()) == ["config.yaml", "environment.json"]


def test_run_stays_in_its_place_when_the_disk_takes_no_other(tiny, earlier, monkeypatch):
    run = earlier(finished=True)
    before = {each: each.read_bytes() for each in run.rglob("*") if each.is_file()}
    real = run_directory.write_atomically

    def full(path, content):
        if path.name == "environment.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr(run_directory, "write_atomically", full)
    for goes_on in (False, True):
        with pytest.raises(UserError, match="No space left on device; make room, or write --out"):
            run_directory.prepare(run, tiny(), {}, goes_on=goes_on)
        assert {each: each.read_bytes() for each in run.rglob("*") if each.is_file()} == before


def test_directory_is_one_runs_at_a_time(tmp_path):
    with (
        run_directory.claimed(tmp_path / "run"),
        pytest.raises(UserError, match=rf"/run' is in use: process {os.getpid()} on .*write --tag"),
        run_directory.claimed(tmp_path / "run"),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_preparing_removes_what_a_run_left_and_nothing_else(tiny, tmp_path):
    run_directory.prepare(tmp_path, tiny("epochs=9"), {})
    for name in ("checkpoints/half.tmp", "tensorboard/events", "summary.json", "notes/mine.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    run_directory.prepare(tmp_path, tiny(), {"python": "3"})
    left = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()}
    assert left == {"notes/mine.txt", "config.yaml", "environment.json"}
    assert load(str(tmp_path / "config.yaml")) == tiny()
    assert json.loads((tmp_path / "environment.json").read_text()) == {"python": "3"}


def test_directory_of_somebody_elses_is_refused_and_left_alone(tiny, tmp_path):
    theirs = tmp_path / "checkpoints" / "theirs.pt"
    theirs.parent.mkdir()
    theirs.write_text("weeks of work")
    with pytest.raises(UserError, match="holds 'checkpoints' but no run"):
        run_directory.prepare(tmp_path, tiny(), {})
    assert theirs.read_text() == "weeks of work"


def test_directory_that_cannot_be_written_is_refused(tiny, tmp_path):
    (tmp_path / "file").touch()
    for run in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match=r"cannot write the run directory .*; write --out"):
            run_directory.prepare(run, tiny(), {})


def test_summary_is_read_back_or_none(tmp_path):
    assert run_directory.read_summary(tmp_path) is None
    for text in ("{", "[]"):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(UserError, match=r"summary\.json"):
            run_directory.read_summary(tmp_path)


def test_a_finished_run_is_over_only_for_the_same_run(tiny, finished_run, tmp_path):
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))

    def decided(*options, resume="auto", overwrite=False, processes=1):
        asked = {"resume": resume, "overwrite": overwrite, "processes": processes}
        return run_directory.decide(run, tiny(*options), **asked)

    assert decided() == run_directory.finished(run)
    assert decided("epochs=9") is None
    assert decided(processes=2) is None
    assert decided(resume=None, overwrite=True) is None
    assert decided(resume=str(run / "checkpoints" / "best.pt")) is None
    with pytest.raises(UserError, match="holds a finished run; write --resume auto"):
        decided(resume=None)
    with pytest.raises(UserError, match="--resume is 'nowhere', which does not exist"):
        decided(resume="nowhere")
    (run / "checkpoints").rename(run / "elsewhere")
    assert decided() is None, "it trains again, as there is nothing to resume from"
    (run / "elsewhere").rename(run / "checkpoints")
    (run / "summary.json").unlink()
    assert decided() is None


def test_nothing_is_left_of_a_decision(tiny, tmp_path):
    run = tmp_path / "runs" / "new"
    config = tiny()
    assert run_directory.decide(run, config, resume="auto", overwrite=False, processes=1) is None
    assert not list(tmp_path.iterdir())
    with (
        run_directory.claimed(run),
        pytest.raises(UserError, match=f"is in use: process {os.getpid()} on "),
    ):
        run_directory.decide(run, config, resume=None, overwrite=True, processes=1)
