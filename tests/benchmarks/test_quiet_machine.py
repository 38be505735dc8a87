"""A result of a busy machine does not replace one that is there."""

import importlib
import json
from pathlib import Path

import pytest


@pytest.fixture
def quiet_machine(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("quiet_machine")


def test_a_busy_machine_writes_only_what_was_not_there(quiet_machine, tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    file = tmp_path / "some.json"
    busy = quiet_machine.Watched(wall=60.0, own=60.0, all=72.0)
    quiet_machine.keep(file, {"figure": 1}, busy)
    assert json.loads(file.read_text())["machine"] == {
        "quiet": False,
        "share_of_others": 0.1,
        "limit": 0.05,
        "minutes": 1.0,
    }
    with pytest.raises(SystemExit, match=r"others had 10% of the cores.*left as it was"):
        quiet_machine.keep(file, {"figure": 2}, busy)
    assert json.loads(file.read_text())["figure"] == 1
    calm = quiet_machine.Watched(wall=60.0, own=60.0, all=61.0)
    quiet_machine.keep(file, {**json.loads(file.read_text()), "figure": 3}, calm)
    found = json.loads(file.read_text())
    assert (found["figure"], found["machine"]["quiet"]) == (3, True)


def test_by_default_the_time_since_the_import_counts(quiet_machine, tmp_path, monkeypatch):
    own, everything = quiet_machine._own(), quiet_machine._all()
    monkeypatch.setattr(quiet_machine, "_own", lambda: own + 1)
    monkeypatch.setattr(quiet_machine, "_all", lambda: everything + 1e6)
    quiet_machine.keep(tmp_path / "some.json", {})
    assert not json.loads((tmp_path / "some.json").read_text())["machine"]["quiet"]
