"""Recipes are verified in pairs of short trainings, within a time budget."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from halfstep.advise.choose.verify import PAIRS, Verifier
from halfstep.recipe import recipe

from .test_exceptions import Distances, Square, subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.advise.subject import Subject

STEPS = 24


@pytest.fixture(scope="module")
def square() -> Subject:
    return subject(Square)


@pytest.fixture(scope="module")
def verifier(square: Subject) -> Verifier:
    return Verifier(square, seed=3, steps=STEPS)


def test_pairs_settle_that_a_good_recipe_trains_as_fp32(verifier: Verifier) -> None:
    told: list[tuple[str, str]] = []
    verifier.tell = lambda what, detail="": told.append((what, detail))
    result = verifier.verify(recipe("bf16"))
    assert told[:2] == [
        ("verification: fp32, pair 1 (3 to 8 pairs)", f"step {step} of {STEPS}") for step in (1, 2)
    ]
    assert result.settled == "good"
    assert 3 <= len(result.losses) == len(result.fp32) < PAIRS
    again = Verifier(verifier.subject, seed=3, steps=STEPS).verify(recipe("bf16"))
    assert again == result


@pytest.mark.parametrize("shuffled", [True, False])
def test_pairs_with_the_same_batches_are_told(verifier: Verifier, *, shuffled: bool) -> None:
    about = verifier.subject
    if not shuffled:
        about = replace(about, epoch=lambda *_: iter(about.batches))
    said = Verifier(about, steps=STEPS).verify(recipe("fp32")).said
    assert ("every pair had the same batches in the same order" in said) is not shuffled


def test_runs_in_which_the_loss_hardly_decreases_say_so(verifier: Verifier) -> None:
    still = replace(
        verifier.subject, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-9)
    )
    said = [
        Verifier(about, steps=STEPS).verify(recipe("fp32")).said
        for about in (still, verifier.subject)
    ]
    assert "fp32's loss hardly decreased" in said[0]
    assert "hardly" not in said[1]


def test_fp32_beside_itself_is_the_same_to_the_bit(verifier: Verifier) -> None:
    result = verifier.verify(recipe("fp32"))
    assert result.losses == result.fp32


def test_pairs_settle_that_updates_which_are_lost_are_no_training(verifier: Verifier) -> None:
    slow = replace(
        verifier.subject, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-3)
    )
    result = Verifier(slow, steps=STEPS).verify(recipe("bf16-true"))
    assert result.settled == "bad", result.said


def test_verification_follows_the_schedule(verifier: Verifier) -> None:
    def standing(optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
        asked.append(steps)
        return LambdaLR(optimizer, lambda _: 0.0)

    asked: list[int] = []
    # At a learning rate of 0, updates that a recipe would lose make no difference.
    result = Verifier(replace(verifier.subject, schedule=standing), steps=STEPS).verify(
        recipe("bf16-true")
    )
    assert set(asked) == {STEPS}
    assert result.settled == "good"
    assert "schedule shortened" in result.said


def test_a_recipe_whose_loss_is_not_finite_is_bad_at_once() -> None:
    result = Verifier(subject(Distances), steps=STEPS).verify(recipe("half"))
    assert result.settled == "bad"
    assert "pair 1: " in result.said
    assert not result.losses


def test_a_budget_that_is_spent_leaves_it_open(square: Subject) -> None:
    result = Verifier(square, budget=1e-6).verify(recipe("bf16"))
    assert (result.settled, result.losses) == ("open", ())
    assert "budget" in result.said


class Slowed:
    """A subject whose steps advance the clock, which does not run otherwise.

    Args:
        of: The subject.
        patch: Replaces `time.monotonic` by this clock.
        step: Returns the seconds of the next step.
    """

    def __init__(self, of: Subject, patch: pytest.MonkeyPatch, step: Callable[[], float]) -> None:
        self.began = self._now = time.monotonic()
        self.subject = replace(of, loss=self._loss)
        self._of, self._step = of, step
        patch.setattr(time, "monotonic", lambda: self._now)

    @property
    def seconds(self) -> float:
        """The seconds that the steps took so far."""
        return self._now - self.began

    def _loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self._now += self._step()
        return self._of.loss(model, batch)


def slow_if_autocast(fp32: float, autocast: float) -> Callable[[], float]:
    return lambda: autocast if torch.is_autocast_enabled("cpu") else fp32


def test_a_training_that_outlasts_the_budget_is_cut_short(
    square: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another program takes the processor after the first 20 steps.
    times = chain(repeat(1.0, 20), repeat(100.0))
    slowed = Slowed(square, monkeypatch, lambda: next(times))
    result = Verifier(slowed.subject, budget=1000, steps=STEPS).verify(recipe("bf16"))
    assert (result.settled, result.losses) == ("open", ())
    assert "a larger --budget gives it more time" in result.said
    assert f"3 pairs of runs of {STEPS} steps would take about" in result.said
    assert slowed.seconds < 500  # long before the budget ends, because it cannot suffice


def test_verification_leaves_the_model_and_random_numbers_as_they_are(square: Subject) -> None:
    before = {name: value.clone() for name, value in square.model.state_dict().items()}
    state = torch.get_rng_state()
    Verifier(square, budget=1e6, steps=STEPS).verify(recipe("bf16-sr"))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(value, before[name]) for name, value in square.model.state_dict().items()
    )
    assert all(param.grad is None for param in square.model.parameters())


def test_verification_accumulates_and_clips_as_the_config_does(square: Subject) -> None:
    steps: list[float] = []

    class Counted(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            grads = [p.grad for group in self.param_groups for p in group["params"]]
            steps.append(float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in grads]))))
            return super().step(closure)

    about = replace(
        square,
        optimizer=lambda model: Counted(model.parameters(), lr=1e-3),
        accumulate=4,
        clip_norm=1e-3,
    )
    pairs = len(Verifier(about, steps=STEPS).verify(recipe("fp32")).losses)
    assert len(steps) == 2 * pairs * STEPS // 4
    assert max(steps) <= 1e-3 * (1 + 1e-5)


@pytest.mark.parametrize("recipes", [1, 3])
def test_a_verification_plans_for_the_time_of_the_recipes_steps(
    square: Subject, monkeypatch: pytest.MonkeyPatch, recipes: int
) -> None:
    slowed = Slowed(square, monkeypatch, slow_if_autocast(1, 9))
    verifier = Verifier(slowed.subject, budget=4000, steps=100, recipes=recipes)
    result = verifier.verify(recipe("bf16"))
    # Six steps of each kind are timed; half of the rest is planned for three pairs.
    planned = 0.5 * (4000 - 6 - 6 * 9) / (3 * (1 + recipes * 9))
    assert abs(result.steps - planned) <= 1
    assert result.settled == "good"
    assert slowed.seconds < 4000


def test_a_verification_whose_fewest_steps_take_too_long_does_not_begin(
    square: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed = Slowed(square, monkeypatch, slow_if_autocast(1, 10))
    result = Verifier(slowed.subject, budget=300).verify(recipe("bf16"))
    assert (result.settled, result.losses) == ("open", ())
    # 3 * 20 * (1 + 10) seconds; six steps in fp32 and five under the recipe were timed.
    assert "3 pairs of runs of 20 steps would take about 660 s more, and 2" in result.said
    assert slowed.seconds < 6 + 5 * 10


def test_the_time_needed_is_that_of_both_kinds_of_runs(
    square: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed = Slowed(square, monkeypatch, slow_if_autocast(1, 10))
    result = Verifier(slowed.subject, budget=1440, steps=100).verify(recipe("bf16"))
    # Twice the longer run, three times, would be more than the budget.
    assert (result.settled, len(result.losses)) == ("good", 3)


def test_a_second_recipe_has_the_time_that_the_first_left(
    square: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed = Slowed(square, monkeypatch, slow_if_autocast(1, 10))
    verifier = Verifier(slowed.subject, budget=1200, steps=100)
    assert verifier.verify(recipe("bf16")).settled == "good"
    began = slowed.seconds
    assert verifier.verify(recipe("bf16")).settled == "open"
    assert slowed.seconds == began  # its time is known, so it does not begin
    result = verifier.verify(recipe("fp16"))
    assert (result.settled, len(result.losses)) == ("open", 0)
    said = re.search(r"would take about (\d+) s more, and (\d+) of the 1200 s", result.said)
    assert said is not None
    needed, left = map(float, said.groups())
    assert left < needed < 1200
    assert slowed.seconds - began < 10 * 10  # ends soon, because it cannot suffice
    verifier.budget = slowed.seconds
    assert "no time is left for it" in verifier.verify(recipe("bf16-true")).said
