"""A time budget decides which recipes are examined and nothing else; what is left is told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from halfstep.advise.answer import answer
from halfstep.advise.budget import BudgetSpentError
from halfstep.advise.choose.advice import NOT_EXAMINED, Advice, advise
from halfstep.advise.choose.clock import Clock
from halfstep.advise.choose.show import chosen
from halfstep.advise.choose.solve import by_worth, solve
from halfstep.advise.predict.forecast import Forecaster
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.report.page import page
from halfstep.recipe import recipe

from .test_exceptions import Square, subject

if TYPE_CHECKING:
    from halfstep.advise.subject import Subject

RECIPES = ["bf16", "fp16", "half-bn32"]


class Timer:
    """A time that goes on by a second with each forward pass of the model."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, about: Subject) -> Subject:
        def loss(model: Any, batch: Any) -> Any:
            self.seconds += 1
            return about.loss(model, batch)

        return replace(about, loss=loss)

    def clock(self, budget: float | None, tell: Any = lambda *_: None) -> Clock:
        return Clock(len(RECIPES), budget, tell, now=lambda: self.seconds)


@pytest.fixture(scope="module")
def unlimited() -> Advice:
    return advise(subject(Square), RECIPES)


def limited(budget: float, order: list[str] | None = None) -> Advice:
    timer = Timer()
    clock = timer.clock(budget)
    return advise(timer.timed(subject(Square)), RECIPES, order=order, clock=clock)


def rows(advice: Advice) -> dict[str, Any]:
    return {row["recipe"]: row for row in advice.as_json()["recipes"]}


@pytest.mark.parametrize("budget", [9, 12, 14, 17, 20])
def test_the_time_changes_nothing_of_a_recipe_that_was_examined(
    budget: float, unlimited: Advice
) -> None:
    found = limited(budget)
    assert set(found.unexamined) | set(rows(found)) == set(RECIPES)
    assert not set(found.unexamined) & {trial.base for trial in found.trials}
    assert all(row == rows(unlimited)[name] for name, row in rows(found).items())
    assert found.as_json()["not_examined"] == dict.fromkeys(found.unexamined, NOT_EXAMINED)


def test_a_budget_ends_a_search_that_has_begun() -> None:
    told: list[str] = []
    timer = Timer()
    clock = timer.clock(15, lambda what, *_: told.append(what))
    found = advise(timer.timed(subject(Square)), RECIPES, clock=clock)
    assert any(what.startswith("fp16 ") for what in told)
    assert "fp16" in found.unexamined
    assert [trial.base for trial in found.trials] == ["bf16"]
    assert found.needed > 15


def test_recipes_are_examined_in_their_order_and_listed_in_the_one_asked_for(
    unlimited: Advice,
) -> None:
    assert limited(1e9, RECIPES[::-1]).as_json() == unlimited.as_json()
    found = limited(15, RECIPES[::-1])
    assert "bf16" in found.unexamined
    assert [trial.base for trial in found.trials] == ["half-bn32"]


def test_a_recording_that_cannot_end_in_time_ends_after_two_steps() -> None:
    timer = Timer()
    with pytest.raises(BudgetSpentError):
        advise(timer.timed(subject()), RECIPES, clock=timer.clock(5))
    assert timer.seconds == 2


def test_the_fastest_on_a_gpu_come_first_and_what_it_lacks_last() -> None:
    forecaster = Forecaster(subject(Square), batch=1 << 20, largest=False)
    t4 = gpu("t4")
    first, second, last = by_worth(["bf16", "fp16", "o2"], [t4], forecaster)
    times = [forecaster.predict(recipe(name), t4).seconds.value for name in (first, second)]
    assert times == sorted(times)
    assert last == "bf16"
    told: list[str] = []
    answer(
        subject(), ["bf16", "fp16"], [t4], batch=1 << 20, tell=lambda what, *_: told.append(what)
    )
    examined = [what for what in dict.fromkeys(told) if "(recipe" in what]
    assert examined == ["fp16 (recipe 1 of 2)", "bf16 (recipe 2 of 2)"]


def test_an_answer_without_time_names_every_recipe_and_calls_none_safe() -> None:
    found = answer(subject(Square), RECIPES, [gpu("t4")], batch=1 << 20, budget=0)
    assert found.advice is None
    assert not found.recommended
    data = found.as_json()
    assert data["not_examined"] == dict.fromkeys(RECIPES, NOT_EXAMINED)
    assert {row["recipe"] for row in data["predicted"]["rows"]} == {"fp32", *RECIPES}
    text = page(found)
    assert f"{NOT_EXAMINED}, because the budget is too short" in text
    assert "no recipe was examined" in text


def test_unexamined_recipes_are_no_recipes_without_gain(unlimited: Advice) -> None:
    none = replace(unlimited, trials=(), unexamined=tuple(RECIPES))
    forecaster = Forecaster(subject(Square), batch=1 << 20, largest=False)
    (choice,) = solve(subject(Square), none, [gpu("t4")], forecaster)
    assert choice.left == dict.fromkeys(RECIPES, NOT_EXAMINED)
    assert "no examined recipe is predicted to be clearly faster" in chosen(choice, none)


def test_steps_recipes_passes_and_the_time_left_are_told() -> None:
    told: list[tuple[str, str]] = []
    timer = Timer()

    def tell(what: str, detail: str = "") -> None:
        told.append((what, detail))

    clock = timer.clock(None, tell)
    for step in range(8):
        clock.recording(step)
        timer.seconds += 10
    assert told[1] == ("fp32", "step 2 of 8; about 3m10s left")  # 7 steps and 3 x 4 passes
    clock.examining("fp16")
    assert told[-1] == ("fp16 (recipe 1 of 3)", "pass 9 of about 20; about 2m00s left")
    clock.passing(12)
    timer.seconds += 120
    clock.examining("o2")  # a recipe that took many passes makes the others take no more
    assert told[-1] == ("o2 (recipe 2 of 3)", "pass 21 of about 28; about 80.0s left")
    clock.passing(2)
    timer.seconds += 20
    clock.following(0, 100)
    timer.seconds += 3
    clock.following(1, 100)
    assert told[-1][1] == "step 2 of 100 of the optimizer alone; about 5m57s left"
    short = timer.clock(100)
    short.following(0, 100)
    timer.seconds += 3
    with pytest.raises(BudgetSpentError):
        short.following(1, 100)
