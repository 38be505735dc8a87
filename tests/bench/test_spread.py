import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfstep.bench.spread import first_good_enough, is_faster, speed_ratios, spread

FIGURES = st.lists(st.lists(st.floats(0.1, 10), min_size=4, max_size=4), min_size=1, max_size=5)


def test_quartiles_are_those_of_numpy():
    values = [3.0, 1.0, 4.0, 1.5, 9.0]
    found = spread(values)
    assert [found.low, found.median, found.high] == np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    assert not found.is_exact
    assert spread([2.0]).is_exact


def test_a_ratio_is_of_speed_whichever_figures_are_the_faster_ones():
    assert speed_ratios([10, 30], [5, 10], "more") == (2, 3)
    assert speed_ratios([1, 2], [4, 4], "less") == (4, 2)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([110, 112, 111], True),
        ([102, 102, 102], False),  # always ahead, but for nothing that is worth a change
        ([150, 90, 110, 80], False),  # far ahead at times, and behind at others
        ([150, 99, 150, 150, 150], True),
        ([120, 95, 130], False),  # two of three rounds are fewer than three quarters
    ],
)
def test_faster_is_what_is_ahead_by_enough_and_nearly_always(own, expected):
    base = [100] * len(own)
    assert is_faster(own, base, "more") is expected
    assert is_faster([1 / each for each in own], [1 / each for each in base], "less") is expected
    assert not is_faster(base, own, "more")


def test_the_smallest_setting_that_none_beats_is_good_enough():
    none, one, two, four = [100, 100, 100], [160, 165, 150], [180, 181, 184], [182, 179, 188]
    assert first_good_enough([none, one, two, four], "more") == 2
    assert first_good_enough([none], "more") == 0
    assert first_good_enough([four, two, one, none], "less") == 3


@given(FIGURES)
def test_what_is_good_enough_is_beaten_by_none_or_has_the_best_median(figures):
    place = first_good_enough(figures, "less")
    beaten = any(is_faster(other, figures[place], "less") for other in figures)
    medians = [spread(own).median for own in figures]
    assert not beaten or medians[place] == min(medians)
