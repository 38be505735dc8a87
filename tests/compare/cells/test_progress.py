import io

import pytest
from rich.console import Console

from halfstep.compare.cells.progress import CellsDone
from halfstep.compare.cells.results import Result, from_summary

FINISHED = {"status": "finished", "best_accuracy": 0.9778, "wall_seconds": 40.0}


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("halfstep.compare.cells.progress.time.monotonic", lambda: now[0])
    return now


def test_plain_lines_say_what_runs_and_about_how_long_it_takes(make_grid, clock):
    grid = make_grid()
    file = io.StringIO()
    with CellsDone(Console(file=file, width=40), grid) as progress:
        progress.kept(from_summary(grid.cells[0], FINISHED))
        progress.started(grid.cells[1])
        clock[0] += 20.0
        progress.ended(from_summary(grid.cells[1], FINISHED))
        progress.started(grid.cells[2])
        progress.ended(Result(grid.cells[2], "crashed", "killed by SIGSEGV"))
    assert file.getvalue().splitlines() == [
        "[1/3] fp32 seed 0: finished, best 97.78 %, from an earlier comparison",
        "[2/3] fp16 seed 0: running, about 80.0s left in all",
        "[2/3] fp16 seed 0: finished, best 97.78 %, 20.0s",
        "[3/3] bf16 seed 0: running, about 30.0s left in all",
        "[3/3] bf16 seed 0: crashed (killed by SIGSEGV), 0.0s",
    ]


def test_a_terminal_shows_which_cell_runs_how_many_are_done_and_the_time_left(make_grid, clock):
    grid = make_grid()
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, color_system=None)
    with CellsDone(console, grid) as progress:
        progress.started(grid.cells[0])
        grid.cells[0].run_directory.mkdir(parents=True)
        (grid.cells[0].run_directory / "metrics.jsonl").write_text('{"kind": "val", "epoch": 1}\n')
        clock[0] += 10.0
        progress._live.refresh()
    shown = file.getvalue()
    assert "fp32 seed 0" in shown
    assert "0 of 3 runs done" in shown
    assert "about 1m50s left" in shown


def test_cells_that_run_at_the_same_time_share_what_is_left(make_grid, clock):
    grid = make_grid()
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, color_system=None)
    with CellsDone(console, grid, slots=2) as progress:
        progress.started(grid.cells[0])
        progress.started(grid.cells[1])
        for cell in grid.cells[:2]:
            cell.run_directory.mkdir(parents=True)
            (cell.run_directory / "metrics.jsonl").write_text('{"kind": "val", "epoch": 2}\n')
        clock[0] += 10.0
        progress._live.refresh()
    # Half of two cells of 20 s, and one of 20 s that waits, over two slots.
    assert "fp32 seed 0 and 1 more" in file.getvalue()
    assert "about 20.0s left" in file.getvalue()
