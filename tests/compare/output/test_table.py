import io
import re
from dataclasses import replace
from html import unescape

import pytest
from rich.console import Console

from compare.synthetic import fill, summary
from halfstep.compare.cells.results import Result, from_summary
from halfstep.compare.output.notes import notes
from halfstep.compare.output.records import as_json
from halfstep.compare.output.report.page import page
from halfstep.compare.output.table import show
from halfstep.compare.output.texts import latex, markdown
from halfstep.compare.rows.predicted import Predicted, Prediction


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
    assert any(line.endswith("on on on ") for line in text.splitlines())


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


def test_resident_memory_is_marked_as_such_and_device_memory_is_not(make_grid):
    grid = make_grid(("fp32",))
    on_cpu = [from_summary(grid.cells[0], summary(peak_memory_kind="resident-rise"))]
    on_device = [from_summary(grid.cells[0], summary())]
    assert "MiB*" in shown(grid, on_cpu, 80)
    assert "* Memory is the increase of the process's resident memory" in shown(grid, on_cpu, 80)
    assert "MiB*" not in shown(grid, on_device, 80)
    assert "resident" not in shown(grid, on_device, 80)


def test_rehearsed_rows_are_marked_and_the_reason_stands_below(make_grid):
    grid = make_grid(("fp32", "fp16", "o1"))
    reason = "autocast fp16: rehearsed (no fp16 units)"
    results = [
        from_summary(cell, summary(rehearsed=[] if cell.recipe == "fp32" else [reason]))
        for cell in grid.cells
    ]
    for text in (shown(grid, results, 120), markdown(grid, results)):
        lines = text.splitlines()
        assert any("fp16 †" in line for line in lines)
        assert not any("fp32 †" in line for line in lines)
        said = "† autocast fp16 (recipes fp16, o1) is emulated as follows: no fp16 units"
        assert any(said in line for line in lines)


def test_the_result_comes_first_and_at_most_three_notes_below_it(make_grid):
    grid = make_grid(("fp32", "fp16", "bf16"), (0, 1, 2))
    results = [
        replace(result, summary={**result.summary, "core_wait_share": 0.4})
        for result in fill(grid)  # the last seed of fp16 crashes, and bf16 is rehearsed
    ]
    text = shown(grid, results, 1000)
    every = notes(grid, results)
    assert len(every) > 6
    printed = [note for note in every if note in text]
    assert printed == every[:3]
    assert [note.split()[0] for note in printed] == ["fp16", "‡", "†"]
    assert f"also have: {len(every) - 3} more notes; the columns " in text
    assert text.index("points compared with fp32") < text.index(printed[0])
    for document in (markdown, page):
        whole = unescape(document(grid, results).replace("\\", ""))
        assert all(note in whole for note in every)


def test_a_failed_run_or_a_missing_prediction_is_noted_before_what_holds_for_any(make_grid):
    grid = make_grid(("fp32", "fp16"))
    results = [from_summary(cell, summary(core_wait_share=0.4)) for cell in grid.cells]
    refused = Predicted(grid.arms[1], "x", reason="no such units")
    prediction = Prediction("h100", "H100", 80, "tf32", (refused,), (), "earlier ones were low")
    file = io.StringIO()
    show(Console(file=file, width=1000), grid, results, [prediction])
    lines = [line for line in file.getvalue().splitlines() if line.startswith(("‡", "≈", "best"))]
    assert [line.split(":")[0] for line in lines] == [
        "‡ the times are not reliable",
        "≈ no prediction for fp16",
        "≈ earlier ones were low",
    ]


def test_the_verdicts_stand_below_the_table(mixed):
    text = shown(*mixed, 200)
    assert "does not scale the loss" not in text
    assert (
        "fp16: worse; nonfinite (first non-finite loss at step 1234). Try a lower learning rate"
        in text
    )
    assert "bf16: not settled; crashed. The same command repeats the run" in text


@pytest.mark.parametrize("width", [80, 120])
def test_a_grid_names_the_overrides_of_every_row_and_fits(make_grid, width):
    points = (("batch_size=256", "optimizer.lr=0.1"), ("batch_size=1024", "optimizer.lr=0.4"))
    grid = make_grid(("fp32", "fp16"), (0, 1, 2), points=points)
    text = shown(grid, fill(grid), width)
    table = text.split("\n\n")[0]
    assert max(len(line) for line in table.splitlines()) <= width
    for said in ("batch_size=256", "batch_size=1024", "lr=0.4"):
        assert sum(line.startswith(said) for line in table.splitlines()) >= 2


@pytest.mark.parametrize(
    ("width", "left_out"), [(60, ["wall", "final", "images"]), (80, ["wall"]), (120, [])]
)
def test_a_narrow_terminal_leaves_columns_out_and_says_where_they_are(make_grid, width, left_out):
    grid = make_grid(("fp32", "half-bn32"), (0, 1, 2), points=(("batch_size=256",),))
    results = [
        from_summary(cell, summary(best_accuracy=0.9 + 0.05 * cell.seed, rehearsed=["reason"]))
        for cell in grid.cells
    ]
    table, *rest = shown(grid, results, width).split("\n\n")
    assert max(len(line) for line in table.splitlines()) <= width
    also = " ".join(" ".join(rest).split()).partition("table.md and report.html also have: ")[2]
    for header in ("wall", "final", "images"):
        assert (header in table) == (header not in left_out)
        assert (f"{header} " in also.partition(".")[0]) == (header in left_out)
    assert "memory x" in also


def test_the_best_trade_is_marked(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1))
    text = shown(grid, fill(grid), 80)
    assert "fp16 ◆" in text
    assert (
        "◆ marks the Pareto front, that is, rows for which no other finished row is at least as "
        "good in accuracy, time and memory and better in one of them." in " ".join(text.split())
    )


def test_the_interval_of_a_speed_stands_below_it_and_the_table_still_fits(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1, 2))
    rates = (100.0, 1100.0, 100.0, 1300.0, 100.0, 1250.0)
    results = [
        from_summary(cell, summary(images_per_second=rate))
        for cell, rate in zip(grid.cells, rates, strict=True)
    ]
    text = shown(grid, results, 80)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    row = next(number for number, line in enumerate(lines) if line.startswith("fp16"))
    for line, said in zip(lines[row : row + 3], ("12.14", "[9.77,", "15.08]"), strict=True):
        assert said in line.split()
    assert "12.14x the speed [9.77, 15.08], 1.00x the memory. Use it" in " ".join(lines)
    for document in (markdown, latex):
        assert "12.14 [9.77, 15.08]" in document(grid, results).replace("\\", "")
    assert "ratios are computed on logarithms" in " ".join(lines)


def test_disturbed_times_are_marked_wherever_the_comparison_is_shown(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1))
    results = [
        from_summary(cell, summary(core_wait_share=0.3 if cell == grid.cells[1] else 0.01))
        for cell in grid.cells
    ]
    assert [row["disturbed"] for row in as_json(grid, results)["rows"]] == [False, True]
    assert "waited for a core %" in markdown(grid, results)
    for text, mark in (
        (shown(grid, results, 200), "‡"),
        (markdown(grid, results), "‡"),
        (latex(grid, results), r"$\ddagger$"),
        (page(grid, results), "‡"),
    ):
        assert f"fp16 {mark}" in re.sub("<[^>]*>", "", text)
        assert f"fp32 {mark}" not in re.sub("<[^>]*>", "", text)
        assert f"{mark} the times are not reliable: other processes used the cores" in text
        assert "OMP" in text
