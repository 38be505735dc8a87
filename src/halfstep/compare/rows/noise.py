"""The noise of training in the differences in accuracy: its variance, supported by all rows.

Two to five seeds hardly support a variance: two seeds that agree by luck would seem to prove that a
recipe has no noise. All rows of a comparison train the same model on the same images, so their
noise is similar, and rows lend it to each other:

- The noise of the other rows adds to the degrees of freedom of a row. It is the residual variance
  of an additive model of rows and seeds, which contains neither the effect that a seed has on all
  rows nor the effects of the recipes. The baseline, which is in every difference, is one of them.
- A row may be noisier than the others. So the others add at most `LENT` degrees of freedom, with
  `SCALE` times their variance. With these values, tests/compare/rows/test_simulation.py finds wrong
  verdicts in at most 5 % of comparisons, even on a row whose noise has three times the standard
  deviation of the others. A row that is `CLEARLY` noisier, has failed or is not comparable stands
  alone: it neither lends nor borrows. A row that equals the baseline in every seed does not lend.
- An accuracy counts images. So the variance is at least that of seeds that agree but for one image
  in one seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from halfstep.compare.cells.results import Result
    from halfstep.compare.plan.grid import Arm, Grid

    Values = NDArray[np.float64]

LENT = 1.0
"""The degrees of freedom that the other rows, however many, add to those of a row at most."""
SCALE = 3.0
"""The factor on the variance of the other rows."""
CLEARLY = 0.01
"""The significance level of the F test by which a row is noisier than the others."""
COMPARABLE = 0.1
"""The largest difference from the baseline in any seed, 0 to 1, of a row that lends its noise.

A model that has failed to learn has a noise of its own, or none.
"""


def noise_by_arm(grid: Grid, results: Sequence[Result]) -> dict[Arm, tuple[float, float]]:
    """Estimate the noise of each arm's difference to its baseline.

    Returns:
        The variance of the difference for a single seed, and its degrees of freedom. Baselines and
        arms with fewer than two pairs of accuracies are left out.
    """
    accuracies: dict[Arm, dict[int, float]] = {arm: {} for arm in grid.arms}
    failed = {result.cell.arm for result in results if result.status in ("nonfinite", "collapsed")}
    for result in results:
        best = result.number("best_accuracy")
        if best is not None and result.status == "finished":
            accuracies[result.cell.arm][result.cell.seed] = best
    images = [each.number("val_images") for each in results if each.status == "finished"]
    step = max((1 / each for each in images if each), default=0.0)
    found: dict[Arm, tuple[float, float]] = {}
    for baseline in dict.fromkeys(map(grid.baseline, grid.arms)):
        base = accuracies[baseline]
        arms = [arm for arm in grid.arms if arm != baseline and grid.baseline(arm) == baseline]
        lending = [
            arm
            for arm in arms
            if arm not in failed
            and base.keys() <= accuracies[arm].keys()
            and all(abs(accuracies[arm][seed] - base[seed]) <= COMPARABLE for seed in base)
        ]
        for table in (lending, *([arm] for arm in arms if arm not in lending)):
            seeds = [seed for seed in base if all(seed in accuracies[arm] for arm in table)]
            if table and len(seeds) > 1:
                rows = [[accuracies[arm][seed] for seed in seeds] for arm in (baseline, *table)]
                estimates = zip(*noise(np.array(rows), step), strict=True)
                found |= {
                    arm: (float(variance), float(freedom))
                    for arm, (variance, freedom) in zip(table, estimates, strict=True)
                }
    return found


def noise(accuracies: Values, step: float = 0.0) -> tuple[Values, Values]:
    """Estimate the variance of each row's difference to the first row, for a single seed.

    Args:
        accuracies: Shape (..., rows, seeds), from 0 to 1. There are at least two rows, of which the
            first is the baseline, and at least two seeds.
        step: The smallest difference between two accuracies: 1 / number of images; 0 if unknown.

    Returns:
        The variances and their degrees of freedom, each of shape (..., rows - 1).
    """
    least, own_freedom = step**2 / accuracies.shape[-1], accuracies.shape[-1] - 1
    own = (accuracies[..., 1:, :] - accuracies[..., :1, :]).var(-1, ddof=1)
    others, freedom = _others(accuracies, least / 2)
    with np.errstate(divide="ignore"):
        added = 1 / (1 / LENT + 1 / freedom)
    total = own_freedom + added
    variance = (own_freedom * own + added * SCALE * 2 * others) / total
    return np.maximum(variance, least), total


def _others(accuracies: Values, least: float) -> tuple[Values, Values]:
    """Return the residual variance of a run in the other rows, and its degrees of freedom.

    Both have the shape (..., rows - 1), for each row but the baseline. There are no degrees of
    freedom for a row that stands alone.
    """
    from scipy.special import fdtrc

    rows, freedom = np.arange(accuracies.shape[-2]), accuracies.shape[-1] - 1
    centred = accuracies - accuracies.mean(-1, keepdims=True)
    # Equal rows, such as two names of one recipe, are one row.
    first = (accuracies[..., :, None, :] == accuracies[..., None, :, :]).all(-1).argmax(-1)
    distinct = first == rows
    pooled = distinct
    while True:
        count = pooled.sum(-1, keepdims=True)
        of_seeds = (pooled[..., None] * centred).sum(-2, keepdims=True) / count[..., None]
        squares = (pooled[..., None] * (centred - of_seeds) ** 2).sum(-1)
        # What the residual sum of squares loses without a row, from the formulas for a table
        # without missing values.
        lost = squares * count / np.maximum(count - 1, 1)
        left = (count - 1 - pooled) * freedom
        rest = np.maximum(squares.sum(-1, keepdims=True) - lost, 0.0)
        variance = np.maximum(rest / np.maximum(left, 1), least)
        tested = pooled & (lost > 0) & (left > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            chance = fdtrc(freedom, np.maximum(left, 1), lost / freedom / variance)
        chance = np.where(tested, chance, 1.0)
        noisiest = (chance == chance.min(-1, keepdims=True)) & (chance < CLEARLY)
        if not noisiest.any():
            break
        pooled = pooled & ~noisiest
    # Every difference contains the noise of the baseline.
    left = np.where(pooled[..., :1] & (pooled | ~distinct), left, 0)
    like = np.where(first > 0, first, rows)
    variance, left = (np.take_along_axis(each, like, -1) for each in (variance, left))
    return variance[..., 1:], left[..., 1:]
