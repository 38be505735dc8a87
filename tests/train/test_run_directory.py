import json
from pathlib import Path

import pytest

from halfstep.errors import UserError
from halfstep.train import run_directory
from halfstep.train.config.files import load


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


def test_finished_run_of_another_config_is_refused(tiny, tmp_path):
    run_directory.prepare(tmp_path, tiny(), {})
    run_directory.refuse_another_run(tmp_path, tiny("epochs=9"))  # not finished: may be replaced
    (tmp_path / "summary.json").write_text("{}")
    run_directory.refuse_another_run(tmp_path, tiny())
    with pytest.raises(
        UserError, match=r"finished run of another config; write --tag .*--overwrite"
    ):
        run_directory.refuse_another_run(tmp_path, tiny("epochs=9"))
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(UserError, match="finished run of another config"):
        run_directory.refuse_another_run(tmp_path, tiny())


def test_preparing_removes_what_a_run_left_and_nothing_else(tiny, tmp_path):
    run_directory.prepare(tmp_path, tiny("epochs=9"), {})
    for name in ("checkpoints/best.pt", "tensorboard/events", "summary.json", "notes/mine.txt"):
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
