from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from compare.synthetic import fill, summary
from halfstep.compare.cells.results import Result, from_summary
from halfstep.compare.rows.rows import rows_by_arm
from halfstep.compare.rows.verdict import NO_WORSE, NOT_SETTLED, WORSE, verdicts
from halfstep.looks import levels
from halfstep.statistics import Ratio, interval, power, seeds_needed


@pytest.fixture
def judged(make_grid):
    """Judge fp16 by its accuracies and the baseline's, one pair a seed.

    Its speed is one ratio for all seeds, or one for each.
    """

    def judge(mine, theirs, *, recipe="fp16", speed=2.0, kind="device", margin=0.01, **changes):
        speeds = np.broadcast_to(speed, len(mine)).tolist()
        grid = replace(make_grid(("fp32", recipe), range(len(mine))), margin=margin)
        results = [
            from_summary(
                cell,
                summary(best_accuracy=best, images_per_second=rate, peak_memory_kind=kind)
                | (changes if cell.recipe == recipe else {}),
            )
            for cell, best, rate in zip(
                grid.cells,
                [best for pair in zip(theirs, mine, strict=True) for best in pair],
                [rate for each in speeds for rate in (100.0, 100.0 * each)],
                strict=True,
            )
        ]
        (verdict,) = verdicts(grid, rows_by_arm(grid, results))
        return verdict

    return judge


def test_one_seed_decides_nothing(judged):
    verdict = judged([0.97], [0.96])
    assert verdict.answer == NOT_SETTLED
    assert str(verdict) == (
        "fp16: not settled; +1.00 points compared with fp32; one seed gives no interval; "
        "2.00x the speed, 1.00x the memory. Run --seeds 3 or more before you decide"
    )


def test_as_accurate_and_faster_is_to_be_used(judged):
    verdict = judged([0.961, 0.960, 0.962], [0.960, 0.961, 0.961])
    assert verdict.answer == NO_WORSE
    assert verdict.finding.startswith(
        "+0.03 points compared with fp32 [-0.25, +0.32] with 3 seeds (power 100 %); 2.00x"
    )
    assert verdict.advice == "use it"


def test_as_accurate_and_no_faster_is_not_worth_a_change(judged):
    verdict = judged([0.961, 0.960, 0.962], [0.960, 0.961, 0.961], speed=1.0)
    assert (verdict.answer, verdict.advice) == (
        NO_WORSE,
        "keep fp32: there is nothing to gain on this device",
    )


SAME = ([0.961, 0.960, 0.962], [0.960, 0.961, 0.961])


def test_a_speed_whose_interval_reaches_down_to_the_bar_is_no_advice(judged):
    verdict = judged(*SAME, speed=[1.1, 1.5, 1.0])
    assert "1.18x the speed [0.70, 2.00], 1.00x the memory" in verdict.finding
    assert (
        verdict.advice
        == "keep fp32 until more seeds show whether fp16 is 1.05x faster (about 28 seeds)"
    )


def test_a_row_that_is_slower_in_the_mean_is_not_advised_for_its_speed(judged):
    # The arithmetic mean of these is 1.06.
    verdict = judged(*SAME, speed=[1.51, 1.0, 0.66])
    assert "1.00x the speed [0.36, 2.79]" in verdict.finding


def test_a_speed_whose_interval_is_all_below_the_bar_is_nothing_to_gain(judged):
    verdict = judged(*SAME, speed=[1.00, 1.01, 1.02])
    assert verdict.advice.startswith("keep fp32: there is nothing")


def test_memory_is_advised_on_where_its_interval_leaves_the_bar_out(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1, 2))
    for sizes, advice in (((0.70, 0.72, 0.71), "use it"), ((0.50, 1.00, 0.80), "keep fp32 until")):
        results = [
            from_summary(cell, summary(peak_memory_bytes=1000 * size))
            for cell, size in zip(
                grid.cells, [each for size in sizes for each in (1.0, size)], strict=True
            )
        ]
        (verdict,) = verdicts(grid, rows_by_arm(grid, results))
        assert verdict.advice.startswith(advice)
    assert "whether fp16 is 1.05x smaller (about " in verdict.advice


def test_one_pair_of_speeds_among_several_seeds_asks_for_more(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1))
    rates = (100.0, 200.0, 100.0, None)
    results = [
        from_summary(cell, summary(images_per_second=rate))
        for cell, rate in zip(grid.cells, rates, strict=True)
    ]
    (verdict,) = verdicts(grid, rows_by_arm(grid, results))
    assert (
        verdict.advice
        == "keep fp32 until more seeds show whether fp16 is 1.05x faster (3 or more seeds)"
    )


@pytest.fixture
def advised(make_grid):
    """Count the kinds of advice over 2,000 comparisons of a recipe that is so much as fast.

    The time of each run has 10 % of noise. Accuracy and memory are the baseline's.
    """

    def count(seeds, true_speed):
        grid = make_grid(("fp32", "fp16"), range(seeds))
        base, row = rows_by_arm(grid, [from_summary(cell, summary()) for cell in grid.cells])
        noise = np.random.default_rng(seeds).normal(0.0, 0.1, (2, 2000, seeds))
        logs = np.log(true_speed) + noise[0] - noise[1]
        ends = np.exp(interval(logs)).T
        means, deviations = np.exp(logs.mean(1)), logs.std(1, ddof=1)
        return Counter(
            verdicts(grid, [base, replace(row, speed=Ratio(mean, low, high, seeds, sd))])[0].advice
            for mean, (low, high), sd in zip(means, ends, deviations, strict=True)
        )

    return count


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_recipe_that_is_no_faster_is_hardly_ever_advised_for_its_speed(advised, seeds):
    assert advised(seeds, 1.0)["use it"] / 2000 <= 0.05


def test_five_seeds_mostly_find_a_recipe_that_is_half_as_fast_again(advised):
    assert advised(5, 1.5)["use it"] / 2000 >= 0.9
    # A gain that is missed is left open: it is not said that there is none.
    assert advised(5, 1.5)["keep fp32: there is nothing to gain on this device"] == 0


def test_less_memory_on_a_device_is_a_gain_and_resident_memory_is_not(judged):
    assert judged(*SAME, speed=1.0, peak_memory_bytes=400 * 2**20).advice == "use it"
    resident = judged(*SAME, speed=1.0, peak_memory_bytes=400 * 2**20, kind="resident-rise")
    assert resident.advice.startswith("keep fp32: there is nothing")


def test_disturbed_times_are_said_and_no_advice_on_speed_rests_on_them(judged):
    verdict = judged(*SAME, core_wait_share=0.4)
    assert "2.00x the speed (times of fp16 were disturbed)" in verdict.finding
    assert (verdict.answer, verdict.advice) == (
        NO_WORSE,
        "keep fp32 until the speed is measured on idle cores",
    )
    assert judged(*SAME, core_wait_share=0.02).advice == "use it"
    # Accuracy and memory are what they are on busy cores, too.
    assert judged(*SAME, core_wait_share=0.4, peak_memory_bytes=400 * 2**20).advice == "use it"


def test_a_disturbed_baseline_disturbs_the_speed_of_all(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1))
    results = [
        from_summary(
            cell,
            summary(
                images_per_second=100.0 if cell.recipe == "fp32" else 200.0,
                core_wait_share=0.4 if cell == grid.cells[0] else 0.0,
            ),
        )
        for cell in grid.cells
    ]
    (verdict,) = verdicts(grid, rows_by_arm(grid, results))
    assert verdict.advice.startswith("keep fp32 until")
    assert "(times of fp32 were disturbed)" in verdict.finding


def test_surely_worse_is_said_to_be_worse(judged):
    verdict = judged([0.90, 0.901, 0.899], [0.96, 0.961, 0.96])
    assert verdict.answer == WORSE
    assert "-6.03 points compared with fp32 [-6.18, -5.89] with 3 seeds" in verdict.finding
    assert verdict.advice == "keep fp32, unless the speed or memory of fp16 is worth the loss"


def test_surely_better_is_used_even_where_it_is_not_faster(judged):
    assert judged([0.98, 0.981, 0.979], [0.96, 0.961, 0.96], speed=0.9).advice == "use it"


def test_the_margin_decides(judged):
    lost = [0.953, 0.9545, 0.9535], [0.96, 0.961, 0.96]
    assert {
        margin: judged(*lost, margin=margin).answer for margin in (0.004, 0.0065, 0.008, 0.02)
    } == {0.004: WORSE, 0.0065: NOT_SETTLED, 0.008: NO_WORSE, 0.02: NO_WORSE}


def test_noise_that_hides_a_large_loss_asks_for_more_seeds(judged):
    verdict = judged([0.97, 0.93, 0.96], [0.96, 0.95, 0.95])
    assert verdict.answer == NOT_SETTLED
    assert verdict.seeds_needed == seeds_needed(0.01, np.std([1, -2, 1], ddof=1) / 100)
    assert verdict.power == pytest.approx(power(0.01, np.std([1, -2, 1], ddof=1) / 100, 3))
    assert f"[-4.30, +4.30] with 3 seeds (power {100 * verdict.power:.0f} %)" in verdict.finding
    assert verdict.advice == (
        f"run more seeds: about {verdict.seeds_needed} seeds settle a recipe as accurate as fp32 "
        "in 80 % of comparisons"
    )


def test_a_loss_near_the_margin_is_said_to_be_one(judged):
    verdict = judged([0.950, 0.951, 0.9501], [0.96, 0.961, 0.96])
    assert verdict.answer == NOT_SETTLED
    assert "may be near 1 point: choose another margin" in verdict.advice


def test_power_and_seeds_come_from_the_noise_of_all_rows(make_grid):
    grid = make_grid(("fp32", "fp16", "bf16", "o3"), range(4))
    gained = {"fp16": [1, -1, 1, -1], "bf16": [3, -3, 3, -3], "o3": [-500, -90, -400, -10]}
    best = {name: [0.96 + each / 1000 for each in values] for name, values in gained.items()} | {
        "fp32": [0.96] * 4
    }
    results = [
        from_summary(cell, summary(best_accuracy=best[cell.recipe][cell.seed]))
        for cell in grid.cells
    ]
    fp16, bf16, o3 = verdicts(grid, rows_by_arm(grid, results))
    sd = np.sqrt((4 + 36) / 6) / 1000  # o3 has failed to learn, and does not count
    assert fp16.power == bf16.power == o3.power == pytest.approx(power(0.01, sd, 4))
    # The interval of each row is its own.
    assert "[-0.18, +0.18]" in fp16.finding
    assert "[-0.55, +0.55]" in bf16.finding


def test_nothing_is_settled_between_two_looks(make_grid):
    grid = make_grid(("fp32", "fp16"), range(3))
    results = [from_summary(cell, summary()) for cell in grid.cells]
    waiting = [*results[:-1], Result(grid.cells[-1], "pending")]
    (verdict,) = verdicts(grid, rows_by_arm(grid, waiting))
    assert (verdict.answer, verdict.advice) == (NOT_SETTLED, "the same command runs the others")
    (verdict,) = verdicts(grid, rows_by_arm(grid, results))
    assert verdict.answer == NO_WORSE


def test_early_looks_and_further_attempts_have_wider_intervals(make_grid):
    grid = replace(make_grid(("fp32", "fp16"), range(8)), looks=(4, 8))
    assert grid.confidence(8) == pytest.approx(1 - levels((4, 8), 0.05)[1])
    assert grid.confidence(4) == pytest.approx(1 - levels((4, 8), 0.05)[0])
    again = replace(grid, plans=((3,), (4, 8)))
    assert again.confidence(8) == pytest.approx(1 - levels((4, 8), 0.025)[1])
    third = replace(grid, plans=((3,), (5,)))
    assert third.confidence(8) == pytest.approx(1 - levels((4, 8), 0.0125)[1])


@pytest.mark.parametrize(
    ("gained", "again", "control"),
    [
        (
            {"control": -0.05},
            (NO_WORSE, "as it must be: the same recipe with other seeds"),
            (WORSE, "as it must be: this recipe loses by design"),
        ),
        (
            {"fp32-again": -0.05},
            (WORSE, "do not trust this comparison: it calls the same recipe worse"),
            (NO_WORSE, "do not trust this comparison: it does not tell a recipe that loses"),
        ),
    ],
)
def test_the_checks_say_whether_the_comparison_can_tell(make_grid, gained, again, control):
    checks = {"fp32-again": "again", "control": "control"}
    grid = replace(make_grid(("fp32", *checks), range(3)), checks=checks)
    results = [
        from_summary(cell, summary(best_accuracy=0.96 + gained.get(cell.recipe, 0.0)))
        for cell in grid.cells
    ]
    found = verdicts(grid, rows_by_arm(grid, results))
    assert [each.check for each in found] == ["again", "control"]
    for verdict, (answer, advice) in zip(found, (again, control), strict=True):
        assert verdict.answer == answer
        assert verdict.advice.startswith(advice)
        assert "speed" not in verdict.finding


def test_a_known_cause_replaces_general_advice(make_grid):
    grid = make_grid(("fp32", "o3"))
    broken = summary("nonfinite", first_nonfinite_step=2)
    for cause, advice in (
        (
            "EPS_IS_ZERO: eps = 1e-08 is 0 in fp16",
            "doctor found the cause, EPS_IS_ZERO; see",
        ),
        (None, "use o2 or fp16, because o3 does not scale the loss"),
        ("NOT_FINITE: in step 2, NaN first appears", "use o2 or fp16, because o3 does not scale"),
        ("LEARNING_RATE_TOO_HIGH: the loss grew", "try a lower learning rate"),
    ):
        results = [
            from_summary(grid.cells[0], summary()),
            from_summary(grid.cells[1], broken, cause=cause),
        ]
        (verdict,) = verdicts(grid, rows_by_arm(grid, results))
        assert verdict.advice.startswith(advice)


def test_equal_in_every_seed_needs_no_more_of_them(judged):
    verdict = judged([0.96, 0.97], [0.96, 0.97])
    assert "equal to fp32 in all 2 seeds" in verdict.finding


def test_rehearsed_accuracy_counts_and_rehearsed_speed_does_not(judged):
    verdict = judged(*SAME, rehearsed=["autocast fp16: rehearsed (no fp16 units)"])
    assert "the speed here is that of a rehearsal and does not count" in verdict.finding
    assert "measure the speed there" in verdict.advice


@pytest.mark.parametrize(
    ("mine", "answer", "advice"),
    [
        ([0.961, 0.960, 0.962], NO_WORSE, "keep fp16 until the speed is measured on hardware"),
        ([0.971, 0.972, 0.971], NO_WORSE, "use it"),
        ([0.921, 0.922, 0.921], WORSE, "keep fp16"),
    ],
)
def test_no_speed_counts_beside_a_baseline_that_was_rehearsed(make_grid, mine, answer, advice):
    grid = make_grid(("fp16", "fp32"), range(3))
    best = {"fp16": [0.960, 0.961, 0.961], "fp32": mine}
    results = [
        from_summary(
            cell,
            summary(
                best_accuracy=best[cell.recipe][cell.seed],
                images_per_second={"fp16": 100.0, "fp32": 200.0}[cell.recipe],
                rehearsed=["reason"] if cell.recipe == "fp16" else [],
            ),
        )
        for cell in grid.cells
    ]
    (verdict,) = verdicts(grid, rows_by_arm(grid, results))
    assert verdict.answer == answer
    assert verdict.advice.startswith(advice)
    assert "unless" not in verdict.advice
    assert verdict.finding.endswith(
        "; the speed of fp16 here is that of a rehearsal and does not count"
    )


def test_broken_rows_say_where_and_what_to_try(make_grid):
    grid = make_grid(("fp32", "o3"), (0, 1))
    (verdict,) = verdicts(grid, rows_by_arm(grid, fill(grid)))
    assert (verdict.answer, verdict.finding) == (
        WORSE,
        "nonfinite in 2 of 2 seeds (first non-finite loss at step 12)",
    )


def test_half_without_a_loss_scale_is_told_of_one(make_grid):
    grid = make_grid(("fp32", "o3"))
    grid.cells[1].settings["recipe"] = {"name": "o3", "params": "fp16"}
    (verdict,) = verdicts(grid, rows_by_arm(grid, fill(grid)))
    assert str(verdict) == (
        "o3: worse; nonfinite (first non-finite loss at step 12). Use o2 or fp16, because o3 does "
        "not scale the loss; or try a lower learning rate"
    )
    grid.cells[1].settings["recipe"] = {"name": "x", "params": "fp16", "loss_scale": {"init": 1}}
    (verdict,) = verdicts(grid, rows_by_arm(grid, fill(grid)))
    assert "loss scale" not in verdict.advice


def test_without_a_baseline_there_is_no_verdict(make_grid):
    grid = make_grid(("fp32", "fp16"))
    results = [Result(grid.cells[0], "crashed", "x"), from_summary(grid.cells[1], summary())]
    (verdict,) = verdicts(grid, rows_by_arm(grid, results))
    assert (verdict.answer, verdict.finding) == (NOT_SETTLED, "fp32 has no result to compare with")


@pytest.mark.parametrize("broken", ["o3 alone, its loss grew before", "fp32 as well"])
def test_a_rate_that_is_too_high_is_not_blamed_on_a_missing_loss_scale(make_grid, broken):
    grid = make_grid(("fp32", "o3"))
    grid.cells[1].settings["recipe"] = {"name": "o3", "params": "fp16"}
    reference, half = fill(grid)
    if broken == "fp32 as well":
        changes = {"first_nonfinite_step": 20, "error": "the loss was nan at step 20"}
        reference = from_summary(grid.cells[0], summary("nonfinite", **changes))
    else:
        half = replace(half, cause="LEARNING_RATE_TOO_HIGH: the loss grew from 1.6 to 74.1")
    (verdict,) = verdicts(grid, rows_by_arm(grid, [reference, half]))
    # A baseline that fails as well does not show that the recipe is worse.
    assert verdict.answer == (NOT_SETTLED if broken == "fp32 as well" else WORSE)
    assert verdict.advice == "try a lower learning rate, a longer warm-up, or clip_norm"
