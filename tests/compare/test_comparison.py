import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from halfstep.compare import comparison
from halfstep.compare.plan.grid import Plan

# Runs a pickled plan with the fake training, as the command line would.
COMPARE = """
import pickle, sys
from rich.console import Console
from halfstep.compare.comparison import compare

plan, script, ran = pickle.load(sys.stdin.buffer)

def command(cell, device):
    return [sys.executable, script, str(cell.run_directory), cell.recipe, str(cell.seed), ran]

compare(plan, command, Console())
"""


@pytest.fixture
def compare(training, tmp_path):
    def run(grid, *, fresh=False, devices=("cpu",)):
        with (tmp_path / "said.txt").open("a") as said:
            _, results = comparison.compare(
                plan_of(grid, devices), training, Console(file=said), fresh=fresh
            )
            return results

    return run


def plan_of(grid, devices=("cpu",)):
    return Plan(grid, grid.cells[0].directory.parent, devices)


def table_of(grid):
    directory = grid.cells[0].directory.parent
    return json.loads((directory / "comparison.json").read_text())


def inode_of(cell):
    return (cell.run_directory / "summary.json").stat().st_ino


def test_the_comparison_goes_on_after_cells_that_end_badly(make_grid, training, compare):
    training.behave(fp32="segfaults", fp16="nonfinite")
    results = compare(make_grid())
    assert [result.status for result in results] == ["crashed", "nonfinite", "finished"]
    assert [row["status"] for row in table_of(make_grid())["rows"]] == [
        "crashed",
        "nonfinite",
        "finished",
    ]


def test_only_crashed_cells_are_tried_again(make_grid, training, compare):
    training.behave(fp32="raises", fp16="nonfinite")
    compare(make_grid())
    training.behave(fp16="nonfinite")
    compare(make_grid())
    assert training.ran == ["fp32 0", "fp16 0", "bf16 0", "fp32 0"]
    assert table_of(make_grid())["complete"] is True


def test_more_recipes_and_seeds_run_only_the_new_cells(make_grid, training, compare):
    compare(make_grid(("fp32",)))
    compare(make_grid(("fp32", "fp16"), (0, 1)))
    assert training.ran == ["fp32 0", "fp16 0", "fp32 1", "fp16 1"]


def test_tables_with_runs_that_are_left_out_now_are_kept(make_grid, compare, tmp_path):
    compare(make_grid())
    directory = make_grid().cells[0].directory.parent
    table = (directory / "table.md").read_text()
    compare(make_grid())
    assert not (directory / "table-1.md").exists()
    compare(make_grid(recipes=["fp32"], seeds=[0, 1]))
    assert (directory / "table-1.md").read_text() == table
    assert (
        "table-1.md, report-1.html, comparison-1.json, table-1.tex, cells-1.csv"
        in (tmp_path / "said.txt").read_text()
    )
    compare(make_grid(seeds=[0, 1]))
    assert not (directory / "table-2.md").exists()


def test_changed_settings_run_again_and_say_so(make_grid, training, compare, tmp_path):
    compare(make_grid(("fp32",)))
    compare(make_grid(("fp32",), lr=0.2))
    assert training.ran == ["fp32 0", "fp32 0"]
    assert (
        "runs again, because settings changed (optimizer.lr: 0.1 -> 0.2)"
        in (tmp_path / "said.txt").read_text()
    )


def test_fresh_runs_everything_again(make_grid, training, compare):
    compare(make_grid(("fp32",)))
    compare(make_grid(("fp32",)), fresh=True)
    assert training.ran == ["fp32 0", "fp32 0"]


def test_the_estimate_takes_no_notice_of_the_run_that_lay_there_before(
    make_grid, training, compare, tmp_path
):
    compare(make_grid(("fp32",)))
    run = make_grid(("fp32",)).cells[0].run_directory
    (run / "metrics.jsonl").write_text('{"kind": "val", "epoch": 1}\n')
    compare(make_grid(("fp32",)), fresh=True)
    assert "left in all" not in (tmp_path / "said.txt").read_text()


def test_a_comparison_whose_process_group_is_killed_resumes_without_repeating_a_finished_cell(
    make_grid, training, compare
):
    grid = make_grid()
    compare(grid)
    uninterrupted = table_of(grid)
    grid.cells[0].directory.parent.rename(training.script.parent / "uninterrupted")
    training.ran_file.unlink()

    training.behave(fp16="waits")
    process = subprocess.Popen(
        [sys.executable, "-c", COMPARE],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps((plan_of(grid), str(training.script), str(training.ran_file))))
    process.stdin.close()
    waiting = training.ran_file.with_name("ran.txt.waiting")
    while not waiting.exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    statuses = [cell["status"] for cell in table_of(grid)["cells"]]
    assert statuses == ["finished", "pending", "pending"]
    assert (grid.cells[1].run_directory / "config.yaml").exists()
    first = inode_of(grid.cells[0])

    training.behave()
    compare(grid)
    assert training.ran == ["fp32 0", "fp16 0", "fp16 0", "bf16 0"]
    assert inode_of(grid.cells[0]) == first
    assert table_of(grid) == uninterrupted


def test_ctrl_c_says_what_is_left_and_how_to_go_on(make_grid, training, monkeypatch):
    def interrupted(cells, place, **told):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "run_all", interrupted)
    grid = make_grid()
    with pytest.raises(KeyboardInterrupt, match=r"0 of 3 runs have a result .* the same command"):
        comparison.compare(plan_of(grid), training, Console(quiet=True))
    assert [cell["status"] for cell in table_of(grid)["cells"]] == ["pending"] * 3


def test_cells_run_at_the_same_time_on_as_many_devices_as_there_are(make_grid, training, compare):
    # Each waits until the other is there as well.
    training.behave(fp32="waits for the other", fp16="waits for the other")
    results = compare(make_grid(("fp32", "fp16")), devices=("cpu", "cpu"))
    assert [result.status for result in results] == ["finished", "finished"]


def test_every_device_runs_one_cell_at_a_time_until_none_is_left(make_grid, training, compare):
    compare(make_grid(("fp32", "fp16"), (0, 1)), devices=("cuda:0", "cuda:2"))
    assert sorted(training.ran) == ["fp16 0", "fp16 1", "fp32 0", "fp32 1"]
    assert training.devices[:2] == ["cuda:0", "cuda:2"]
    assert len(training.devices) == 4


def test_every_point_of_a_grid_is_a_cell_of_its_own(make_grid, training, compare):
    points = (("batch_size=256",), ("batch_size=1024",))
    grid = make_grid(("fp32", "fp16"), points=points)
    compare(grid)
    assert len(training.ran) == 4
    assert [row["point"] for row in table_of(grid)["rows"]] == [
        ["batch_size=256"],
        ["batch_size=256"],
        ["batch_size=1024"],
        ["batch_size=1024"],
    ]


def test_tables_that_cannot_be_written_stop_no_cell(make_grid, training, compare, monkeypatch):
    written = []

    def full(directory, grid, results, predicted):
        written.append(results)
        if len(written) > 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(comparison, "write_tables", full)
    results = compare(make_grid())
    assert [result.status for result in results] == ["finished"] * 3
    said = training.script.with_name("said.txt").read_text()
    assert "are not up to date: [Errno 28] No space left on device" in said


def test_a_result_of_other_versions_is_kept_with_a_warning(
    make_grid, training, compare, monkeypatch, tmp_path
):
    grid = make_grid(("fp32", "fp16"))
    compare(make_grid(("fp32",)))
    for cell, torch in zip(grid.cells, ("2.11.0", "2.15.0"), strict=True):
        cell.run_directory.mkdir(parents=True, exist_ok=True)
        (cell.run_directory / "environment.json").write_text(f'{{"torch": "{torch}"}}')
    monkeypatch.setattr("halfstep.compare.cells.versions.versions", lambda: {"torch": "2.15.0"})
    compare(grid)
    assert training.ran == ["fp32 0", "fp16 0"]
    assert "warning: made with torch 2.11.0 (now 2.15.0)" in (tmp_path / "said.txt").read_text()


def test_a_cell_that_cannot_start_is_a_row(make_grid, training, compare, monkeypatch):
    def full(cell, *, fresh):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(comparison, "prepare", full)
    results = compare(make_grid(("fp32",)))
    assert results[0].reason == ("it could not be started: [Errno 28] No space left on device")


def test_rows_that_a_look_settles_get_no_further_seeds(make_grid, training, compare):
    grid = make_grid(("fp32", "fp16", "bf16", "o3"), range(6))
    training.behave(fp16="waits for luck", o3="nonfinite")
    results = compare(replace(grid, looks=(2, 4, 6)))
    # fp16 differs from fp32 by chance at first, bf16 is equal to it, and o3 fails.
    counts = {name: sum(each.startswith(name) for each in training.ran) for name in grid.recipes}
    assert counts == {"fp32": 6, "fp16": 6, "bf16": 2, "o3": 2}
    assert len(results) == 16
    table = table_of(grid)
    assert table["plans"] == [[2, 4, 6]]
    assert [row["status"] for row in table["rows"]] == [
        *["finished"] * 3,
        "nonfinite",
    ]
    answers = {each["label"]: each["answer"] for each in table["verdicts"]}
    no_worse = "no worse by more than the margin"
    assert answers == {"fp16": no_worse, "bf16": no_worse, "o3": "worse"}
    # The same command needs no run, and answers the same.
    before = list(training.ran)
    compare(replace(grid, looks=(2, 4, 6)))
    assert training.ran == before
    assert table_of(grid)["verdicts"] == table["verdicts"]


def test_who_comes_back_with_more_seeds_gets_a_wider_interval(make_grid, compare):
    for seeds, confidence in ((2, 0.95), (3, 0.975), (4, 0.9875), (3, 0.975)):
        compare(make_grid(("fp32", "fp16"), range(seeds)))
        table = table_of(make_grid())
        assert table["rows"][1]["difference"]["confidence"] == pytest.approx(confidence)
    assert table["plans"] == [[2], [3], [4]]
