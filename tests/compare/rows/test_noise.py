"""The noise that rows lend each other, against least squares and rows that must not lend any."""

import numpy as np
import pytest

from compare.synthetic import summary
from halfstep.compare.cells.results import Result, from_summary
from halfstep.compare.rows.noise import LENT, SCALE, noise, noise_by_arm
from halfstep.compare.rows.rows import rows_by_arm
from halfstep.compare.rows.verdict import verdicts

IMAGES = 400


def residual_variance(table):
    """Return the residual variance of rows and seeds as additive effects, and its freedom."""
    rows, seeds = table.shape
    effects = np.hstack(
        [np.kron(np.eye(rows), np.ones((seeds, 1))), np.kron(np.ones((rows, 1)), np.eye(seeds))]
    )
    _, _, rank, _ = np.linalg.lstsq(effects, table.ravel(), rcond=None)
    left = table.ravel() - effects @ np.linalg.pinv(effects) @ table.ravel()
    freedom = table.size - rank
    return left @ left / freedom, freedom


@pytest.fixture
def noises(make_grid):
    """Estimate the noise of fp16 by the numbers of images that each row classifies correctly.

    The statuses and counts of a row are one for each seed; None crashed.
    """

    def estimate(status=None, **counts):
        grid = make_grid(tuple(counts), range(len(counts["fp32"])))
        results = []
        for cell in grid.cells:
            right = counts[cell.recipe][cell.seed]
            ended = status if cell.recipe == "o3" and status else "finished"
            result = (
                Result(cell, "crashed", "reason")
                if right is None
                else from_summary(
                    cell, summary(ended, best_accuracy=right / IMAGES, val_images=IMAGES)
                )
            )
            results.append(result)
        found = noise_by_arm(grid, results)
        return {arm.recipe: estimates for arm, estimates in found.items()}

    return estimate


def test_the_other_rows_lend_their_residual_variance():
    table = np.random.default_rng(0).normal([0.9, 0.95, 0.88], 0.01, (4, 3))
    variances, freedom = noise(table)
    for row in (1, 2, 3):
        lent, its_freedom = residual_variance(np.delete(table, row, axis=0))
        own = np.var(table[row] - table[0], ddof=1)
        added = 1 / (1 / LENT + 1 / its_freedom)
        assert freedom[row - 1] == pytest.approx(2 + added)
        assert variances[row - 1] == pytest.approx(
            (2 * own + added * SCALE * 2 * lent) / (2 + added)
        )


def test_two_rows_have_the_variance_of_their_paired_differences():
    table = np.random.default_rng(1).normal(0.9, 0.01, (2, 4))
    variances, freedom = noise(table)
    assert variances == pytest.approx([np.var(table[1] - table[0], ddof=1)])
    assert freedom == pytest.approx([3])


def test_many_comparisons_at_once_are_those_one_by_one():
    tables = np.random.default_rng(2).normal(0.9, 0.01, (50, 5, 2))
    tables[:25, 3] *= np.random.default_rng(3).normal(1, 0.2, (25, 2))  # some stand alone
    variances, freedom = noise(tables, 1 / IMAGES)
    singly = [noise(table, 1 / IMAGES) for table in tables]
    assert np.allclose(variances, [each for each, _ in singly])
    assert np.allclose(freedom, [each for _, each in singly])
    alone = freedom[:, 2] == 1
    assert alone.any()
    assert not alone.all()


def test_equal_accuracies_leave_room_for_one_image_in_one_seed():
    for seeds in (2, 3, 5):
        variances, _ = noise(np.full((3, seeds), 0.9), 1 / IMAGES)
        one_image = np.zeros(seeds)
        one_image[0] = 1 / IMAGES
        assert variances == pytest.approx(2 * [np.var(one_image, ddof=1)])


def test_equal_rows_are_one_row():
    table = np.random.default_rng(0).normal(0.9, 0.01, (3, 2))
    variances, freedom = noise(table)
    twice = noise(table[[0, 1, 2, 2, 1]])
    assert twice[0] == pytest.approx(variances[[0, 1, 1, 0]])
    assert twice[1] == pytest.approx(freedom[[0, 1, 1, 0]])
    # A row that equals the baseline shows nothing of the noise of the others, but has no less.
    beside_equal = noise(table[[0, 0, 1]])
    alone, _ = noise(table[:2])
    assert beside_equal[0] == pytest.approx([SCALE * alone[0] * 0.5 / 1.5, alone[0]])
    assert beside_equal[1] == pytest.approx([1.5, 1])


QUIET = {"fp32": [380, 381, 380], "fp16": [381, 380, 380], "bf16": [380, 380, 382]}


@pytest.mark.parametrize(
    ("broken", "status"),
    [
        ([379, 381, 340], None),  # one seed went wrong
        ([40, 40, 40], None),  # it never learned, and has no noise at all
        ([379, 381, 380], "nonfinite"),
        ([379, 381, 380], "collapsed"),
        ([379, 381, None], None),
    ],
)
def test_a_broken_row_lends_no_noise(noises, broken, status):
    alone, beside = noises(**QUIET), noises(status, **QUIET, o3=broken)
    assert beside["fp16"] == pytest.approx(alone["fp16"])
    assert beside["bf16"] == pytest.approx(alone["bf16"])
    if "o3" in beside:
        assert beside["o3"][1] == sum(right is not None for right in broken) - 1


def test_rows_with_another_baseline_lend_no_noise(make_grid):
    points = (("optimizer.lr=0.1",), ("optimizer.lr=0.4",))
    grid = make_grid(("fp32", "fp16"), range(3), points=points)
    generator = np.random.default_rng(0)
    results = [
        from_summary(cell, summary(best_accuracy=generator.normal(0.9, 0.01), val_images=IMAGES))
        for cell in grid.cells
    ]
    found = noise_by_arm(grid, results)
    assert [freedom for _, freedom in found.values()] == [2, 2]
    # With one recipe, all points have the first one as their baseline.
    grid = make_grid(("fp32",), range(3), points=(*points, ("optimizer.lr=0.2",)))
    results = [
        from_summary(cell, result.summary)
        for cell, result in zip(grid.cells, results, strict=False)
    ]
    assert all(freedom > 2 for _, freedom in noise_by_arm(grid, results).values())


@pytest.fixture
def kinds(make_grid):
    """Judge rows by the numbers of images that they classify correctly, all twice as fast."""

    def judge(images=IMAGES, **counts):
        grid = make_grid(tuple(counts), range(len(counts["fp32"])))
        results = [
            from_summary(
                cell,
                summary(
                    best_accuracy=counts[cell.recipe][cell.seed] / images,
                    images_per_second=100.0 if cell.recipe == "fp32" else 200.0,
                    val_images=images,
                ),
            )
            for cell in grid.cells
        ]
        found = verdicts(grid, rows_by_arm(grid, results))
        return {verdict.label: verdict.kind for verdict in found}

    return judge


def test_two_seeds_that_agree_by_luck_settle_nothing(kinds):
    assert kinds(fp32=[380, 384], fp16=[380, 384]) == {"fp16": "unknown"}
    assert kinds(fp32=[380, 384], fp16=[381, 385]) == {"fp16": "unknown"}
    # Another row shows that the seeds differ by far more.
    rows = {"fp32": [380, 384], "fp16": [380, 384], "bf16": [374, 390]}
    assert kinds(**rows)["fp16"] == "unknown"


@pytest.mark.parametrize("more", [0, 1])
def test_an_image_more_does_not_turn_a_verdict(kinds, more):
    rows = {"fp32": [380, 381], "bf16": [380, 381], "o1": [381, 381]}
    assert kinds(**rows, fp16=[380, 381 + more])["fp16"] == "use"


def test_a_difference_of_one_image_in_every_seed_is_none(kinds):
    for seeds in (2, 3):
        rows = {"fp32": [380] * seeds, "fp16": [381] * seeds, "bf16": [379] * seeds}
        assert "worse" not in kinds(**rows).values()
