"""How often a verdict is wrong, over simulated comparisons whose truth is known.

All comparisons of a setting are simulated at once. The intervals are those of `noise`; the verdicts
themselves, of some of these comparisons, are shown to follow from them.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from compare.synthetic import summary
from halfstep.compare.cells.results import from_summary
from halfstep.compare.rows.noise import noise
from halfstep.compare.rows.rows import rows_by_arm
from halfstep.compare.rows.verdict import TOLERABLE, verdicts

COMPARISONS = 1000
JUDGED = 1
"""The number of comparisons of each setting that the real verdicts judge."""
RECIPES = ("fp32", "tf32", "fp16", "bf16", "o1", "o2", "o3")


class Setting(NamedTuple):
    """What is true of simulated comparisons.

    Attributes:
        rows: The number of rows, with the baseline.
        images: The number of validation images.
        sd: The standard deviation of the accuracy of a recipe over seeds.
        shared: The share of this variance that all rows have in common: the correlation of a pair.
        noisy: The row whose own noise has `times` the standard deviation.
    """

    seeds: int
    rows: int
    images: int
    sd: float
    shared: float
    noisy: int | None = None
    times: float = 1.0


def settings(seeds):
    for rows, images, sd, shared in product(
        (2, 3, 7), (400, 10_000), (0.0, 0.001, 0.004), (0, 0.9)
    ):
        if sd or not shared:
            yield Setting(seeds, rows, images, sd, shared)
    for rows, images, noisy in product((3, 7), (400, 10_000), (0, 1)):
        for times in (2.0, 3.0):
            yield Setting(seeds, rows, images, 0.004, 0.0, noisy, times)


def losses(setting):
    """Return the true loss of each row: every other one loses as much as the margin."""
    return np.array([0.0] + [TOLERABLE * (row % 2) for row in range(setting.rows - 1)])


def accuracies(setting, generator, lost):
    """Return simulated accuracies, of the shape (comparisons, rows, seeds)."""
    shape = (COMPARISONS, setting.rows, setting.seeds)
    scale = np.full((setting.rows, 1), setting.sd * (1 - setting.shared) ** 0.5)
    if setting.noisy is not None:
        scale[setting.noisy] *= setting.times
    luck = setting.sd * setting.shared**0.5 * generator.normal(size=(shape[0], 1, shape[2]))
    level = 0.93 + generator.uniform(size=(shape[0], 1, 1)) / setting.images
    true = level - lost[:, None] + luck + scale * generator.normal(size=shape)
    return np.round(true * setting.images) / setting.images


def intervals(given, images):
    """Return the ends of the intervals of the differences, of the shape (comparisons, rows - 1)."""
    variances, freedom = noise(given, 1 / images)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(variances / given.shape[-1])
    means = (given[:, 1:] - given[:, :1]).mean(-1)
    return means - half, means + half


def at_most_five_percent(wrong):
    """Tell whether a rate of 5 % explains how many of these are wrong."""
    return np.all(wrong.sum(0) <= stats.binom.isf(1e-5, len(wrong), 0.05))


@pytest.fixture
def judge(make_grid):
    """Judge one simulated comparison: the kinds of its verdicts, all rows being twice as fast."""

    def kinds(given, images):
        grid = make_grid(RECIPES[: len(given)], range(given.shape[1]))
        results = [
            from_summary(
                cell,
                summary(
                    best_accuracy=given[RECIPES.index(cell.recipe), cell.seed],
                    images_per_second=100.0 if cell.recipe == "fp32" else 200.0,
                    val_images=images,
                ),
            )
            for cell in grid.cells
        ]
        return [verdict.kind for verdict in verdicts(grid, rows_by_arm(grid, results))]

    return kinds


@pytest.mark.parametrize("seeds", [2, 3, 4, 5])
def test_at_most_five_percent_of_the_verdicts_are_wrong(seeds, judge):
    generator = np.random.default_rng(seeds)
    different, missed = [], []
    for setting in settings(seeds):
        # Every row is once as good as the baseline, and once worse by the margin.
        for lost in (losses(setting), np.append(0.0, TOLERABLE - losses(setting)[1:])):
            given = accuracies(setting, generator, lost)
            low, high = intervals(given, setting.images)
            same = lost[1:] == 0
            wrong = ((low > 0) | (high < 0))[:, same]
            assert at_most_five_percent(wrong), (setting, wrong.mean(0))
            different.extend(wrong.mean(0))
            wrong = (low >= -TOLERABLE)[:, ~same]
            assert at_most_five_percent(wrong), (setting, wrong.mean(0))
            missed.extend(wrong.mean(0))
            for number in range(JUDGED):
                expected = np.where(high < 0, "worse", np.where(low < -TOLERABLE, "unknown", "use"))
                assert judge(given[number], setting.images) == expected[number].tolist(), setting
    assert np.mean(different) <= 0.05
    assert np.mean(missed) <= 0.05
