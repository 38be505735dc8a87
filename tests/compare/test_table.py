import io
from dataclasses import replace

import pytest
from rich.console import Console

from halfstep.compare.results import Result, from_summary
from halfstep.compare.table import duration, markdown, show


def summary(status="finished", **changes):
    return {
        "status": status,
        "best_accuracy": 0.9778,
        "final_accuracy": 0.9722,
        "train_seconds": 124.3,
        "wall_seconds": 3725.0,
        "images_per_second": 91.83,
        "peak_memory_bytes": 812 * 2**20,
        "peak_memory_kind": "device",
        "skipped_steps": 3,
        "first_nonfinite_step": None,
        "error": None,
    } | changes


def shown(grid, results, width, *, terminal=True):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    show(console, grid, results)
    return file.getvalue()


@pytest.fixture
def mixed(make_grid):
    grid = make_grid(("fp32", "fp16", "bf16"))
    full, half, brain = grid.cells
    results = [
        from_summary(full, summary()),
        from_summary(
            half,
            summary(
                "nonfinite",
                best_accuracy=0.95,
                final_accuracy=None,
                first_nonfinite_step=1234,
                error="the loss was nan at step 1234",
            ),
        ),
        Result(brain, "crashed", "exit code 1: RuntimeError: it [said] so, and " + "on " * 40),
    ]
    return grid, results


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0.0s"), (99.94, "99.9s"), (99.96, "1m40s"), (3599.6, "1h00m"), (7500, "2h05m")],
)
def test_durations_are_short(seconds, written):
    assert duration(seconds) == written


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_cuts_nothing(mixed, width):
    lines = shown(*mixed, width).splitlines()
    assert max(len(line) for line in lines) <= width
    numbers = next(line for line in lines if line.startswith("fp16")).split()
    assert numbers == [
        "fp16",
        "95.00",
        "-",
        "-2.78",
        "2m04s",
        "1h02m",
        "91.8",
        "1.00",
        "812",
        "3",
        "1234",
    ]
    text = "\n".join(lines)
    assert "\nnonfinite" in text
    assert "\ncrashed" in text
    assert "fp16 nonfinite: the loss was nan at step 1234" in text


def test_a_pipe_gets_one_line_a_note_and_whole_rows(mixed):
    text = shown(*mixed, 40, terminal=False)
    assert "1234" in text
    assert "…" not in text
    assert text.splitlines()[-1].endswith("on on on ")


def test_a_title_longer_than_the_table_is_whole(make_grid):
    grid = replace(make_grid(("fp32",)), options=("optimizer.lr=0.02", "epochs=3", "clip_norm=1.0"))
    text = shown(grid, [Result(grid.cells[0], "crashed", "reason")], 120)
    title = "digits on cpu with optimizer.lr=0.02 epochs=3 clip_norm=1.0, seed 0"
    assert title in [line.rstrip() for line in text.splitlines()]


def test_a_recipe_that_looks_like_markup_is_printed_as_it_is(mixed):
    assert "it [said] so" in shown(*mixed, 200)


def test_several_seeds_give_mean_deviation_and_what_did_not_finish(make_grid):
    grid = make_grid(("fp32",), (0, 1, 2))
    results = [
        from_summary(grid.cells[0], summary(best_accuracy=0.97)),
        from_summary(grid.cells[1], summary(best_accuracy=0.98)),
        Result(grid.cells[2], "crashed", "killed by SIGKILL"),
    ]
    text = shown(grid, results, 80)
    assert "97.50" in text
    assert "±0.71" in text
    assert "1 crashed" in text
    assert "fp32 seed 2 crashed: killed by SIGKILL" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    by_seed = markdown(grid, results).split("## By seed")[1]
    assert "| fp32 | 1 | 98.00 |" in by_seed
    assert "| fp32 | 2 | - |" in by_seed


def test_markdown_has_a_status_column_and_escapes_what_would_break_it(mixed):
    text = markdown(*mixed)
    assert "| recipe | best % | final % | to fp32 points | train time |" in text
    assert "| non-finite at step | status |" in text
    assert r"RuntimeError: it \[said\] so" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_resident_memory_is_marked_as_such_and_device_memory_is_not(make_grid):
    grid = make_grid(("fp32",))
    on_cpu = [from_summary(grid.cells[0], summary(peak_memory_kind="resident-rise"))]
    on_device = [from_summary(grid.cells[0], summary())]
    assert "MiB*" in shown(grid, on_cpu, 80)
    assert "* rise of the process's resident memory" in shown(grid, on_cpu, 80)
    assert "MiB*" not in shown(grid, on_device, 80)
    assert "resident" not in shown(grid, on_device, 80)
