"""The benchmark of the engine's step: it runs, and a part replaces its own rows only."""

import importlib
import json
import sys
from pathlib import Path

import pytest

import warm

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def measured(folder, *given):
    """Be the script, whose results and page are in another folder."""
    sys.path.insert(0, str(BENCHMARKS))
    script = importlib.import_module("step_overhead")
    script.RESULTS = folder / "step_overhead.json"
    script.docs_table.DOCS = folder
    script.quiet_machine.QUIET = float("inf")
    sys.argv = ["step_overhead.py", *given]
    script.main()


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("step_overhead")


def row(setting, variant, microseconds):
    spread = {"ratio": 1.0, "low": 1.0, "high": 1.0, "rounds": 1}
    return {
        "model": "mlp",
        "setting": setting,
        "variant": variant,
        "microseconds": microseconds,
        **spread,
    }


def test_a_part_replaces_its_rows_and_no_others(script, tmp_path):
    results, page = tmp_path / "step_overhead.json", tmp_path / "performance.md"
    kept = row("bf16", "raw", 123.0)
    results.write_text(json.dumps({"rows": [row("fp32", "engine", -1.0), kept]}))
    page.write_text("before\n<!-- step overhead -->\n<!-- /step overhead -->\nafter\n")
    given = "--models mlp --settings fp32 --variants engine trainer --starts 1 --rounds 2"
    # In a process of its own: the script forks, which torch refuses once autograd has threads.
    ended = warm.run(measured, tmp_path, *given.split())
    assert ended.code == 0, ended.err
    record = json.loads(results.read_text())
    raw, *others, last = record["rows"]
    assert (raw["variant"], raw["ratio"]) == ("raw", 1)
    assert [each["variant"] for each in others] == ["engine", "trainer"]
    assert all(each["microseconds"] > 0 and each["rounds"] == 2 for each in (raw, *others))
    assert last == kept
    shown = page.read_text().splitlines()
    assert shown[2:-2] == script.table(record)


def test_each_step_has_new_batches_loaded_before_its_time_begins(script, monkeypatch):
    tasks = importlib.import_module("steps.tasks")
    happened, windows = [], []

    class Turns:
        def begin(self):
            happened.append("begin")

        def end(self):
            happened.append("end")
            if len(windows) == 3:
                raise KeyboardInterrupt

    task = tasks.Task(script.MODELS["mlp"], script.SETTINGS["fp32, 4 micro-steps"], Turns())
    batches = task.batches()
    loaded = (happened.append("load") or batch for batch in batches)
    monkeypatch.setattr(tasks.Task, "batches", lambda _: loaded)
    with pytest.raises(KeyboardInterrupt):
        task.forever(windows.append)
    assert happened == [*["load"] * 4, "begin", "end"] * 3
    images = [images for window in windows for images, _ in window]
    assert len(images) == 12
    assert not any(images[0].equal(each) for each in images[1:])
