"""When a learning rate counts as one that falls too early."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from doctor.rules.test_rules import codes
from doctor.rules.watched import watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor import Evidence

CODE = "LEARNING_RATE_FALLS_EARLY"
TOTAL = 60


@pytest.fixture(scope="module")
def broken() -> Evidence:
    return watched(CODE, "broken", errors=())


def evidence_of(
    broken: Evidence,
    *,
    rates: list[float],
    losses: list[float | None],
    last: float = 1e-7,
    numbers: Sequence[int] = range(TOTAL),
) -> Evidence:
    """Return the evidence with other learning rates and losses, and another last rate."""
    first = broken.numbers.steps[0]
    steps = tuple(
        replace(first, iteration=number, learning_rate=rate, loss=loss)
        for number, rate, loss in zip(numbers, rates, losses, strict=True)
    )
    optimizer = replace(broken.static.optimizers[0], largest_rate=last)
    return replace(
        broken,
        numbers=replace(broken.numbers, steps=steps),
        static=replace(broken.static, optimizers=(optimizer,)),
    )


def falling(at: int, low: float = 0.9e-3, total: int = TOTAL) -> list[float]:
    return [1.0] * at + [low] * (total - at)


def losses(last: float, total: int = TOTAL) -> list[float | None]:
    return [1.0] * 5 + [last] * (total - 5)


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        ({}, True),
        ({"rates": falling(15)}, True),
        ({"rates": falling(16)}, False),
        ({"rates": falling(6, low=1.1e-3)}, False),
        ({"rates": [*falling(6, total=59), 1.0]}, False),
        ({"rates": [math.nan] * TOTAL}, False),
        ({"rates": [-1.0] * TOTAL}, False),
        ({"losses": losses(0.51)}, True),
        ({"losses": losses(0.49)}, False),
        ({"losses": [None] * 51 + [1.0] * 9}, False),
        ({"losses": [None] * 50 + [1.0] * 10}, True),
        ({"last": 1e-6}, True),
        ({"last": 2e-6}, False),
        ({"last": 0.0}, False),
    ],
)
def test_the_limits(broken: Evidence, changes: dict, *, is_found: bool) -> None:
    given = {"rates": falling(6), "losses": losses(1.0), **changes}
    assert (CODE in codes(evidence_of(broken, **given))) == is_found


@pytest.mark.parametrize(("total", "is_found"), [(19, False), (20, True)])
def test_the_fewest_steps(broken: Evidence, total: int, *, is_found: bool) -> None:
    evidence = evidence_of(
        broken, rates=falling(3, total=total), losses=losses(1.0, total), numbers=range(total)
    )
    assert (CODE in codes(evidence)) == is_found


@pytest.mark.parametrize(("first_low", "is_found"), [(64, True), (1745, False)])
def test_steps_that_are_not_recorded(broken: Evidence, first_low: int, *, is_found: bool) -> None:
    """The rate may have fallen between the first recorded steps and the latest ones."""
    numbers = [*range(64), *range(1744, 2000)]
    rates = [1.0 if number < first_low else 0.9e-3 for number in numbers]
    evidence = evidence_of(broken, rates=rates, losses=losses(1.0, 320), numbers=numbers)
    often = tuple(replace(each, count=2000) for each in broken.loop.shapes)
    assert (CODE in codes(replace(evidence, loop=replace(broken.loop, shapes=often)))) == is_found
