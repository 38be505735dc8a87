"""The levels of planned looks, against published boundaries and simulated trials."""

import numpy as np
import pytest
from scipy import stats

from halfstep.looks import levels


def test_one_look_has_the_whole_error():
    assert levels((7,), 0.05) == (0.05,)


def test_the_boundaries_of_five_looks_are_the_published_ones():
    # Jennison and Turnbull, "Group Sequential Methods", table 7.6 (rho of O'Brien and Fleming's
    # type), as printed by Lan and DeMets' program: 4.877, 3.357, 2.680, 2.290, 2.031.
    boundaries = stats.norm.isf(np.array(levels((1, 2, 3, 4, 5), 0.05)) / 2)
    assert boundaries == pytest.approx([4.877, 3.357, 2.680, 2.290, 2.031], abs=6e-4)


@pytest.mark.parametrize("looks", [(4, 8, 16), (2, 3, 4, 5, 6), (1, 10)])
def test_all_looks_together_err_as_rarely_as_one(looks):
    draws = np.random.default_rng(0).normal(size=(200_000, looks[-1]))
    sums = draws.cumsum(1)[:, np.array(looks) - 1] / np.sqrt(looks)
    crossed = (sums > stats.norm.isf(np.array(levels(looks, 0.05)) / 2)).any(1)
    assert crossed.mean() == pytest.approx(0.025, abs=4 * (0.025 * 0.975 / 200_000) ** 0.5)
