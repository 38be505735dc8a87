import json
from pathlib import Path

import pytest

from halfstep.bench import directory
from halfstep.bench.sweep import Quantity, Sweep
from halfstep.errors import UserError


@pytest.fixture
def outcome(subject):
    sweep = Sweep("data.workers", ("0", "2"), Quantity("images /s", "more", "{:.0f}".format))
    return sweep.outcome(subject, [[100, 110], [180, 190]])


def test_nothing_is_made_before_there_is_something_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = directory.place(None, "loader", "leaves/resnet18")
    assert place == Path("runs/bench/leaves/resnet18-loader")
    assert list(tmp_path.iterdir()) == []


def test_results_of_the_same_bench_are_replaced(tmp_path, outcome):
    for _ in range(2):
        place = directory.place(tmp_path / "new", "loader", "digits")
        directory.write(place, outcome)
    assert sorted(path.name for path in place.iterdir()) == ["report.html", "results.json"]
    assert json.loads((place / "results.json").read_text())["bench"] == "loader"


def test_anything_else_is_left_alone(tmp_path, outcome):
    directory.write(tmp_path / "bench", outcome)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "results.json").write_text("[1, 2]")
    for out, bench, said in (
        ("bench", "step", "holds bench loader of 'digits', not step of 'digits'"),
        ("thesis", "loader", "contains files that are not a bench"),
        ("thesis/results.json/below", "loader", "results.json is a file"),
    ):
        with pytest.raises(UserError, match=said):
            directory.place(tmp_path / out, bench, "digits")


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(directory.os, "access", lambda *_: False)
    with pytest.raises(UserError, match="cannot write into"):
        directory.place(tmp_path / "new", "loader", "digits")
