"""The statistics against effects that are known, and against scipy's own tests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from halfstep.statistics import (
    Ratio,
    estimate,
    estimate_ratio,
    interval,
    pareto,
    pooled_sd,
    power,
    seeds_needed,
)


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_the_interval_covers_a_known_effect_as_often_as_it_says(seeds, confidence):
    generator = np.random.default_rng(seeds)
    # A seed's own luck, far larger than the effect, is in both members of a pair.
    luck = generator.normal(0.9, 0.05, (4000, seeds, 1))
    accuracies = luck + generator.normal(0.0, 0.002, (4000, seeds, 2)) - [0.0, 0.003]
    low, high = interval(accuracies[..., 1] - accuracies[..., 0], confidence)
    covered = (low <= -0.003) & (high >= -0.003)
    # Four standard errors of a share of 4000.
    allowed = 4 * (confidence * (1 - confidence) / 4000) ** 0.5
    assert covered.mean() == pytest.approx(confidence, abs=allowed)


def test_the_interval_is_that_of_the_paired_t_test():
    one, other = np.random.default_rng(0).normal(0.9, 0.01, (2, 7))
    found = estimate((one - other).tolist())
    expected = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_one_seed_gives_no_interval_and_rules_nothing_out():
    found = estimate([0.25])
    assert found is not None
    assert (found.mean, found.low, found.high, found.sd) == (0.25, None, None, None)
    assert estimate([]) is None


def test_the_interval_has_the_confidence_that_was_asked_for():
    values = np.random.default_rng(0).normal(0.01, 0.01, 6)
    found = estimate(values.tolist(), 0.99)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.99)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_values_that_agree_by_luck_differ_by_one_step_in_one_seed():
    found = estimate([0.01, 0.01, 0.01], step=1 / 400)
    assert found.sd == pytest.approx(np.std([0.01, 0.01, 0.01 + 1 / 400], ddof=1))
    equal = estimate([0.0, 0.0, 0.0])
    assert (equal.low, equal.high, equal.equal) == (0.0, 0.0, True)


def test_the_pooled_deviation_is_that_of_the_values_around_the_mean_of_their_group():
    groups = [[0.1, 0.3, 0.2], [5.0, 5.4], [7.0], []]
    residuals = np.concatenate([np.subtract(group, np.mean(group)) for group in groups[:2]])
    assert pooled_sd(groups) == pytest.approx(np.sqrt((residuals**2).sum() / 3))
    assert pooled_sd([[1.0], []]) is None


def test_no_number_of_seeds_shows_a_tiny_effect():
    assert seeds_needed(1e-6, 1.0) is None
    assert seeds_needed(0.01, 0.0) == 2


def test_the_power_is_how_often_simulated_comparisons_tell_the_effect():
    effect, sd = 0.5, 1.0
    needed = seeds_needed(effect, sd)
    # Cohen's table 2.4.1 asks for 33 to 34 pairs at d = 0.5, power 0.8, two-sided 0.05.
    assert needed == 34
    draws = np.random.default_rng(1).normal(effect, sd, (4000, needed))
    told = stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05
    assert told.mean() == pytest.approx(0.8, abs=0.025)


def test_a_ratio_is_the_geometric_mean_with_the_interval_of_its_logarithm():
    mine, theirs = np.random.default_rng(0).lognormal(0.0, 0.1, (2, 5))
    found = estimate_ratio((mine / theirs).tolist())
    expected = stats.ttest_rel(np.log(mine), np.log(theirs)).confidence_interval(0.95)
    assert found.mean == pytest.approx(stats.gmean(mine / theirs))
    assert (found.low, found.high) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))
    assert found.log_sd == pytest.approx(np.std(np.log(mine / theirs), ddof=1))


def test_it_does_not_matter_to_a_ratio_which_is_divided_by_which():
    # Twice as fast in one seed and half as fast in the next is as fast, not 1.25 times.
    assert estimate_ratio([2.0, 0.5]).mean == pytest.approx(1.0)
    ratios = [1.2, 0.7, 1.9]
    found, turned = estimate_ratio(ratios), estimate_ratio([1 / each for each in ratios])
    inverse = found.inverse()
    assert (inverse.mean, inverse.low, inverse.high) == pytest.approx(
        (turned.mean, turned.low, turned.high)
    )


def test_a_ratio_of_one_seed_has_no_interval_and_rules_nothing_out():
    found = estimate_ratio([2.0])
    assert found == Ratio(pytest.approx(2.0), None, None, 1, None)
    assert not found.is_above(1.05)
    assert not found.is_below(5.0)
    assert found.seeds_to_tell(1.05) is None
    assert estimate_ratio([]) is None


def test_equal_ratios_are_known_exactly(recwarn):
    found = estimate_ratio([0.5, 0.5, 0.5])
    assert (found.low, found.mean, found.high) == pytest.approx((0.5, 0.5, 0.5))
    assert found.is_below(0.95)
    assert not recwarn.list


def test_a_ratio_says_how_many_seeds_would_tell_it_from_a_bar():
    found = estimate_ratio([1.30, 1.05, 1.22])
    effect = np.log(found.mean / 1.05)
    needed = found.seeds_to_tell(1.05)
    assert needed > 3
    assert power(effect, found.log_sd, needed) >= 0.8 > power(effect, found.log_sd, needed - 1)
    assert estimate_ratio([1.05, 1.05]).seeds_to_tell(1.05) is None


def test_the_front_holds_what_nothing_beats():
    points = [(0.97, -10.0, -5.0), (0.96, -4.0, -5.0), (0.96, -5.0, -5.0), (0.90, -20.0, -9.0)]
    assert pareto(points) == [True, True, False, False]
    assert pareto([(1.0, 1.0), (1.0, 1.0)]) == [True, True]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8))
def test_every_point_off_the_front_is_beaten_by_one_on_it(points):
    on = pareto(points)
    front = [point for point, is_on in zip(points, on, strict=True) if is_on]
    assert front
    for point, is_on in zip(points, on, strict=True):
        beaten = any(
            all(a >= b for a, b in zip(other, point, strict=True)) and other != point
            for other in front
        )
        assert beaten is not is_on
