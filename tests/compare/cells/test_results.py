from dataclasses import replace

import pytest

from halfstep.compare.cells.results import Result, Spread, from_summary


def test_spread_of_several_seeds_matches_the_textbook():
    spread = Spread.over([2.0, None, 4.0, 9.0])
    assert spread is not None
    assert (spread.mean, spread.low, spread.high, spread.seeds) == (5.0, 2.0, 9.0, 3)
    assert spread.sd == pytest.approx(13**0.5)


def test_one_seed_has_no_deviation_and_none_has_no_spread():
    assert Spread.over([3.0]) == Spread(3.0, None, 3.0, 3.0, 1)
    assert Spread.over([None]) is None


def test_nonfinite_numbers_of_a_summary_are_no_numbers(make_grid):
    (cell,) = make_grid(("fp32",)).cells
    result = from_summary(cell, {"status": "collapsed", "best_accuracy": "nan", "error": None})
    assert result.number("best_accuracy") is None
    assert result.reason == "the run ended collapsed"


def test_unknown_status_is_an_error(make_grid):
    (cell,) = make_grid(("fp32",)).cells
    with pytest.raises(ValueError, match="status is 'perfect'"):
        from_summary(cell, {"status": "perfect"})


def test_a_number_knows_the_file_that_it_is_from(make_grid):
    (cell,) = make_grid(("fp32",)).cells
    result = from_summary(cell, {"status": "finished", "best_accuracy": 0.5})
    assert result.source("best_accuracy") == "fp32-seed0/run/summary.json#best_accuracy"


def test_dots_lead_into_what_a_summary_nests(make_grid):
    (cell,) = make_grid(("fp32",)).cells
    result = from_summary(cell, {"status": "finished", "newest": {"gradient_cosine": 0.5}})
    assert result.number("newest.gradient_cosine") == 0.5
    assert result.number("newest.gradient_error") is None
    assert result.number("status.deeper") is None


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("nonfinite", "the loss was not finite at step 3; doctor found EPS: eps is zero"),
        ("crashed", "the loss was not finite at step 3; try less; doctor found EPS: eps is zero"),
    ],
)
def test_a_cause_replaces_what_the_run_suggests_to_try(make_grid, status, said):
    (cell,) = make_grid(("fp32",)).cells
    result = Result(cell, status, "the loss was not finite at step 3; try less")
    assert result.failure == result.reason
    assert replace(result, cause="EPS: eps is zero").failure == said
