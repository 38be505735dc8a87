"""When a learning rate counts as one that falls too early."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from doctor.rules.test_rules import codes
from doctor.rules.watched import watched
from halfstep.doctor.record.rates import LearningRates, Rates
from halfstep.doctor.signals.ledgers.rates import StepRates
from halfstep.doctor.signals.watched import Watched

if TYPE_CHECKING:
    from halfstep.doctor import Evidence

CODE = "LEARNING_RATE_FALLS_EARLY"
TOTAL = 60


@pytest.fixture(scope="module")
def broken() -> Evidence:
    return watched(CODE, "broken", errors=())


def evidence_of(
    broken: Evidence, *, rates: list[float], losses: list[float | None], last: float = 1e-7
) -> Evidence:
    """Return the evidence with other learning rates and losses, and another last rate."""
    first, ledger = broken.numbers.steps[0], broken.of(LearningRates)
    steps = tuple(
        replace(first, iteration=number, learning_rate=rate, loss=loss)
        for number, (rate, loss) in enumerate(zip(rates, losses, strict=True))
    )
    (schedule,) = ledger.schedules
    rated = replace(
        ledger, optimizers=booked(rates), schedules=(replace(schedule, moves=len(rates)),)
    )
    optimizer = replace(broken.static.optimizers[0], largest_rate=last)
    return replace(
        broken,
        numbers=replace(broken.numbers, steps=steps),
        static=replace(broken.static, optimizers=(optimizer,)),
        others={**broken.others, LearningRates.signal: rated},
    )


def booked(rates: list[float]) -> tuple[Rates, ...]:
    """Return what the ledger holds of an optimizer that makes one step at each rate."""
    signal, optimizer = StepRates(Watched()), torch.optim.SGD([torch.ones(1)], lr=1.0)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        signal.before_step(optimizer, 0, None)
    return signal.frozen()


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
    evidence = evidence_of(broken, rates=falling(3, total=total), losses=losses(1.0, total))
    assert (CODE in codes(evidence)) == is_found


@pytest.mark.parametrize(("at", "is_found"), [(64, True), (500, True), (501, False)])
def test_the_fall_is_known_in_a_run_of_any_length(
    broken: Evidence, at: int, *, is_found: bool
) -> None:
    """The numbers of a run have only its first 64 steps and its last 256."""
    evidence = evidence_of(broken, rates=falling(at, total=2000), losses=losses(1.0, 2000))
    recorded = (*evidence.numbers.steps[:64], *evidence.numbers.steps[-256:])
    evidence = replace(evidence, numbers=replace(evidence.numbers, steps=recorded))
    assert (CODE in codes(evidence)) == is_found


@pytest.mark.parametrize(
    ("rates", "low_from"),
    [([1.0, 1e-4, 1e-4], 1), ([1e-4, 1.0, 1e-4], 2), ([1.0, 1e-4, 1.0], -1), ([1e-4, 1e-4], -1)],
)
def test_a_rate_is_low_since_it_fell_for_good(rates: list[float], low_from: int) -> None:
    assert booked(rates)[0].low_from == low_from
