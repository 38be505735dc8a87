import numpy as np
import pytest

from compare.synthetic import fill, summary
from halfstep.compare.cells.results import Result, from_summary
from halfstep.compare.rows.rows import rows_by_arm, rows_by_seed


def finished(cell, best, speed=100.0):
    return from_summary(
        cell,
        {
            "status": "finished",
            "best_accuracy": best,
            "images_per_second": speed,
            "skipped_steps": 2,
            "first_nonfinite_step": None,
        },
    )


def test_rows_compare_with_the_baseline_of_the_same_seed(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1))
    base0, half0, base1, half1 = grid.cells
    results = [
        finished(base0, 0.90, 100.0),
        finished(half0, 0.91, 200.0),
        finished(base1, 0.80, 50.0),
        finished(half1, 0.81, 100.0),
    ]
    base, half = rows_by_arm(grid, results)
    assert base.difference is not None
    assert half.difference is not None
    assert half.speed is not None
    assert base.difference.mean == 0
    assert half.difference.mean == pytest.approx(0.01)
    assert (half.difference.low, half.difference.seeds) == (pytest.approx(0.01), 2)
    assert (half.speed.mean, half.speed.log_sd) == (pytest.approx(2.0), 0.0)
    assert [(row.recipe, row.seed) for row in rows_by_seed(grid, results)] == [
        ("fp32", 0),
        ("fp32", 1),
        ("fp16", 0),
        ("fp16", 1),
    ]


def test_a_seed_that_did_not_finish_is_left_out_of_the_means_and_said(make_grid):
    grid = make_grid(("fp32",), (0, 1, 2))
    one, two, three = grid.cells
    nonfinite = from_summary(
        two,
        {
            "status": "nonfinite",
            "best_accuracy": 0.1,
            "first_nonfinite_step": 12,
            "error": "loss is nan",
        },
    )
    results = [finished(one, 0.9), nonfinite, Result(three, "crashed", "killed by SIGSEGV")]
    (row,) = rows_by_arm(grid, results)
    best = row.measures["best_accuracy"]
    assert best is not None
    assert (best.mean, best.seeds) == (0.9, 1)
    assert row.first_nonfinite_step == 12
    assert row.status == "1 finished, 1 nonfinite, 1 crashed"


def test_no_difference_to_a_baseline_without_a_result(make_grid):
    grid = make_grid(("fp32", "fp16"))
    results = [Result(grid.cells[0], "crashed", "reason"), finished(grid.cells[1], 0.9)]
    row = rows_by_arm(grid, results)[1]
    assert row.difference is None
    assert row.speed is None


def test_memory_is_compared_within_a_seed_too(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1))
    results = [
        from_summary(cell, summary(peak_memory_bytes=size))
        for cell, size in zip(grid.cells, (400, 100, 200, 150), strict=True)
    ]
    memory = rows_by_arm(grid, results)[1].memory
    assert memory is not None
    assert memory.mean == pytest.approx((0.25 * 0.75) ** 0.5)
    assert memory.low < 0.25
    assert memory.high > 0.75


def test_what_was_measured_as_nothing_has_no_ratio(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1))
    results = [
        from_summary(cell, summary(peak_memory_bytes=size))
        for cell, size in zip(grid.cells, (400, 0, 0, 150), strict=True)
    ]
    assert rows_by_arm(grid, results)[1].memory is None


def test_a_row_that_is_slower_in_time_is_not_faster_in_the_mean_of_ratios(make_grid):
    # Three pairs of times per image: the arithmetic mean of their ratios is 1.06.
    grid = make_grid(("fp32", "fp16"), (0, 1, 2))
    rates = [100.0, 151.0, 100.0, 100.0, 100.0, 66.0]
    results = [finished(cell, 0.9, rate) for cell, rate in zip(grid.cells, rates, strict=True)]
    assert np.mean([1.51, 1.0, 0.66]) > 1.05
    assert rows_by_arm(grid, results)[1].speed.mean < 1.0


def test_the_front_leaves_out_what_is_beaten_rehearsed_or_broken(make_grid):
    grid = make_grid(("fp32", "fp16", "bf16", "o3"), (0, 1))
    assert [row.on_front for row in rows_by_arm(grid, fill(grid))] == [False, True, None, None]


def test_the_front_leaves_out_disturbed_rows(make_grid):
    grid = make_grid(("fp32", "fp16", "bf16"))
    results = [
        from_summary(cell, summary(train_seconds=seconds, core_wait_share=share))
        for cell, seconds, share in zip(grid.cells, (1.0, 2.0, 3.0), (0.4, 0.0, 0.0), strict=True)
    ]
    assert [row.on_front for row in rows_by_arm(grid, results)] == [None, True, False]


def test_a_row_of_a_grid_is_compared_at_its_own_point(make_grid):
    points = (("lr=0.1",), ("lr=0.4",))
    grid = make_grid(("fp32", "fp16"), points=points)
    results = [
        finished(cell, best)
        for cell, best in zip(grid.cells, (0.90, 0.91, 0.50, 0.70), strict=True)
    ]
    differences = [row.difference for row in rows_by_arm(grid, results)]
    assert [each.mean for each in differences if each] == pytest.approx([0.0, 0.01, 0.0, 0.20])


def test_a_row_names_the_summaries_it_is_made_of(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1, 2))
    rows = rows_by_arm(grid, fill(grid))
    assert rows[1].sources == "fp16-seed0/run/summary.json fp16-seed1/run/summary.json"


def test_resident_memory_keeps_nothing_on_the_front(make_grid):
    grid = make_grid(("fp32", "fp16"))
    for kind, on_front in (("device", [True, True]), ("resident-rise", [False, True])):
        results = [
            from_summary(
                cell, summary(train_seconds=time, peak_memory_bytes=size, peak_memory_kind=kind)
            )
            for cell, time, size in zip(grid.cells, (10.0, 5.0), (100, 200), strict=True)
        ]
        assert [row.on_front for row in rows_by_arm(grid, results)] == on_front


def test_a_seed_in_which_the_baseline_broke_is_compared_with_nothing(make_grid):
    grid = make_grid(("fp32", "bf16"), (0, 1))
    base0, half0, base1, half1 = grid.cells
    broken = from_summary(
        base1, {"status": "nonfinite", "best_accuracy": 0.1, "images_per_second": 1.0}
    )
    results = [finished(base0, 0.90), finished(half0, 0.91), broken, finished(half1, 0.91)]
    _, half = rows_by_arm(grid, results)
    assert half.difference.mean == pytest.approx(0.01)
    assert (half.difference.seeds, half.speed.mean) == (1, pytest.approx(1.0))
