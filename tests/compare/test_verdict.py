import pytest

from halfstep.compare.results import Result, from_summary
from halfstep.compare.rows import rows_by_arm
from halfstep.compare.verdict import verdicts

from .synthetic import fill, summary


@pytest.fixture
def judged(make_grid):
    """Judge fp16 by its accuracies and the baseline's, one pair a seed."""

    def judge(mine, theirs, *, recipe="fp16", speed=2.0, kind="device", **changes):
        grid = make_grid(("fp32", recipe), range(len(mine)))
        results = [
            from_summary(
                cell,
                summary(best_accuracy=best, images_per_second=rate, peak_memory_kind=kind)
                | (changes if cell.recipe == recipe else {}),
            )
            for cell, best, rate in zip(
                grid.cells,
                [best for pair in zip(theirs, mine, strict=True) for best in pair],
                [100.0, 100.0 * speed] * len(mine),
                strict=True,
            )
        ]
        (verdict,) = verdicts(grid, rows_by_arm(grid, results))
        return verdict

    return judge


def test_one_seed_decides_nothing(judged):
    verdict = judged([0.97], [0.96])
    assert verdict.kind == "unknown"
    assert str(verdict) == (
        "fp16: +1.00 points to fp32 with one seed, which gives no interval; 2.00x the speed, "
        "1.00x the memory; run --seeds 3 or more before you decide"
    )


def test_as_accurate_and_faster_is_to_be_used(judged):
    verdict = judged([0.961, 0.960, 0.962], [0.960, 0.961, 0.961])
    assert verdict.kind == "use"
    assert "not told apart with 3 seeds; would need about " in verdict.finding
    assert verdict.advice == "use it"


def test_as_accurate_and_no_faster_is_not_worth_a_change(judged):
    verdict = judged([0.961, 0.960, 0.962], [0.960, 0.961, 0.961], speed=1.0)
    assert (verdict.kind, verdict.advice) == (
        "keep",
        "keep fp32: there is nothing to gain on this device",
    )


def test_less_memory_on_a_device_is_a_gain_and_resident_memory_is_not(judged):
    same = ([0.961, 0.960, 0.962], [0.960, 0.961, 0.961])
    assert judged(*same, speed=1.0, peak_memory_bytes=400 * 2**20).kind == "use"
    resident = judged(*same, speed=1.0, peak_memory_bytes=400 * 2**20, kind="resident-rise")
    assert resident.kind == "keep"


def test_surely_worse_is_said_to_be_worse(judged):
    verdict = judged([0.90, 0.901, 0.899], [0.96, 0.961, 0.96])
    assert verdict.kind == "worse"
    assert "-6.03 points to fp32 [-6.18, -5.89], worse" in verdict.finding
    assert verdict.advice == "keep fp32, unless its speed or memory is worth that"


def test_surely_better_is_used_even_where_it_is_not_faster(judged):
    assert judged([0.98, 0.981, 0.979], [0.96, 0.961, 0.96], speed=0.9).kind == "use"


def test_noise_that_hides_a_large_loss_asks_for_more_seeds(judged):
    verdict = judged([0.97, 0.93, 0.96], [0.96, 0.95, 0.95])
    assert verdict.kind == "unknown"
    assert "run more seeds: these leave a loss of " in verdict.advice


def test_equal_in_every_seed_needs_no_more_of_them(judged):
    verdict = judged([0.96, 0.97], [0.96, 0.97])
    assert "equal to fp32 in all 2 seeds" in verdict.finding


def test_rehearsed_accuracy_counts_and_rehearsed_speed_does_not(judged):
    same = ([0.961, 0.960, 0.962], [0.960, 0.961, 0.961])
    verdict = judged(*same, rehearsed=["autocast fp16: rehearsed (no fp16 units)"])
    assert "rehearsed, so that its speed says nothing" in verdict.finding
    assert "measure its speed there" in verdict.advice


def test_broken_rows_say_where_and_what_to_try(make_grid):
    grid = make_grid(("fp32", "o3"), (0, 1))
    (verdict,) = verdicts(grid, rows_by_arm(grid, fill(grid)))
    assert (verdict.kind, verdict.finding) == (
        "broken",
        "nonfinite in 2 of 2 seeds, first at step 12",
    )


def test_half_without_a_loss_scale_is_told_of_one(make_grid):
    grid = make_grid(("fp32", "o3"))
    grid.cells[1].settings["recipe"] = {"name": "o3", "params": "fp16"}
    (verdict,) = verdicts(grid, rows_by_arm(grid, fill(grid)))
    assert "do not use it without a loss scale" in verdict.advice
    grid.cells[1].settings["recipe"] = {"name": "x", "params": "fp16", "loss_scale": {"init": 1}}
    (verdict,) = verdicts(grid, rows_by_arm(grid, fill(grid)))
    assert "loss scale" not in verdict.advice


def test_without_a_baseline_there_is_no_verdict(make_grid):
    grid = make_grid(("fp32", "fp16"))
    results = [Result(grid.cells[0], "crashed", "x"), from_summary(grid.cells[1], summary())]
    (verdict,) = verdicts(grid, rows_by_arm(grid, results))
    assert (verdict.kind, verdict.finding) == ("unknown", "no result of fp32 to compare with")
