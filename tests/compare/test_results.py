import json

import pytest

from halfstep.compare.results import (
    Result,
    Spread,
    as_json,
    from_summary,
    rows_by_recipe,
    rows_by_seed,
)


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


def test_spread_of_several_seeds_matches_the_textbook():
    spread = Spread.over([2.0, None, 4.0, 9.0])
    assert spread is not None
    assert (spread.mean, spread.low, spread.high, spread.seeds) == (5.0, 2.0, 9.0, 3)
    assert spread.sd == pytest.approx(13**0.5)


def test_one_seed_has_no_deviation_and_none_has_no_spread():
    assert Spread.over([3.0]) == Spread(3.0, None, 3.0, 3.0, 1)
    assert Spread.over([None]) is None


def test_rows_compare_with_the_baseline_of_the_same_seed(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1))
    base0, half0, base1, half1 = grid.cells
    results = [
        finished(base0, 0.90, 100.0),
        finished(half0, 0.91, 200.0),
        finished(base1, 0.80, 50.0),
        finished(half1, 0.81, 100.0),
    ]
    base, half = rows_by_recipe(grid, results)
    assert base.difference is not None
    assert half.difference is not None
    assert half.speed is not None
    assert base.difference.mean == 0
    assert (half.difference.mean, half.difference.sd) == (pytest.approx(0.01), pytest.approx(0.0))
    assert (half.speed.mean, half.speed.sd) == (2.0, 0.0)
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
    (row,) = rows_by_recipe(grid, results)
    best = row.measures["best_accuracy"]
    assert best is not None
    assert (best.mean, best.seeds) == (0.9, 1)
    assert row.first_nonfinite_step == 12
    assert row.status == "1 finished, 1 nonfinite, 1 crashed"


def test_no_difference_to_a_baseline_without_a_result(make_grid):
    grid = make_grid(("fp32", "fp16"))
    results = [Result(grid.cells[0], "crashed", "reason"), finished(grid.cells[1], 0.9)]
    row = rows_by_recipe(grid, results)[1]
    assert row.difference is None
    assert row.speed is None


def test_nonfinite_numbers_of_a_summary_are_no_numbers(make_grid):
    (cell,) = make_grid(("fp32",)).cells
    result = from_summary(cell, {"status": "collapsed", "best_accuracy": "nan", "error": None})
    assert result.number("best_accuracy") is None
    assert result.reason == "the run ended collapsed"


def test_unknown_status_is_an_error(make_grid):
    (cell,) = make_grid(("fp32",)).cells
    with pytest.raises(ValueError, match="status is 'perfect'"):
        from_summary(cell, {"status": "perfect"})


def test_json_holds_rows_and_the_summaries_that_they_come_from(make_grid):
    grid = make_grid(("fp32", "fp16"))
    results = [finished(grid.cells[0], 0.9), Result(grid.cells[1], "crashed", "killed by SIGSEGV")]
    data = json.loads(json.dumps(as_json(grid, results), allow_nan=False))
    assert data["rows"][0]["measures"]["best_accuracy"]["mean"] == 0.9
    assert data["cells"][0]["summary"]["best_accuracy"] == 0.9
    assert data["cells"][1]["reason"] == "killed by SIGSEGV"
    assert data["complete"] is False
