"""The complete answer for a subject: the safe recipes, their cost, and the recipes to use.

This module combines the results. `choose/show.py` and `table.py` print them, and `report` writes
them to files.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from halfstep.advise.budget import BudgetSpentError
from halfstep.advise.choose import advice as advices
from halfstep.advise.choose.advice import NOT_EXAMINED
from halfstep.advise.choose.clock import Clock, silent
from halfstep.advise.choose.solve import Choice, by_worth, solve
from halfstep.advise.predict.forecast import SHARE, Forecast, Forecaster, forecasts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.advise.choose.advice import Advice
    from halfstep.advise.choose.clock import Tell
    from halfstep.advise.choose.trial import Trial
    from halfstep.advise.choose.verify import Verification, Verifier
    from halfstep.advise.predict.gpus import Gpu
    from halfstep.advise.subject import Subject


@dataclass(frozen=True, slots=True)
class Answer:
    """The complete answer for a subject.

    Attributes:
        subject: The subject.
        advice: The safe recipes; None if no recipe was examined.
        costs: The predicted cost of recipes, with the exceptions that they need.
        choices: The recipe to use on each GPU.
        verified: The results of short trainings, by recipe.
        interrupted: Whether Ctrl-C ended the short trainings.
        unexamined: The recipes that were not examined because the time budget was spent; nothing
            is known about their safety.
        needed: The estimated time to examine all recipes, in seconds.
    """

    subject: Subject
    advice: Advice | None
    costs: tuple[Forecast, ...] = ()
    choices: tuple[Choice, ...] = ()
    verified: Mapping[str, Verification] = field(default_factory=dict)
    interrupted: bool = False
    unexamined: tuple[str, ...] = ()
    needed: float = 0.0

    @property
    def recommended(self) -> list[Trial]:
        """The recipes to use: the best one for each GPU, or the first safe one without GPUs."""
        chosen = [choice.best.trial for choice in self.choices if choice.best]
        if self.choices:
            return list({trial.base: trial for trial in chosen}.values())
        return self._holding[:1]

    @property
    def references(self) -> dict[str, dict[str, Any]]:
        """The specs of fp32 or tf32, by name, where it is the recipe to use on a GPU."""
        names = [
            choice.reference.recipe
            for choice in self.choices
            if choice.best is None and choice.reference.fits
        ]
        return {name: {"base": name} for name in names}

    @property
    def advice_with_exceptions(self) -> list[Trial]:
        """The safe recipes that differ from their base recipe."""
        return [each for each in self._holding if len(each.spec) > 1]

    @property
    def _holding(self) -> list[Trial]:
        bad = {name for name, each in self.verified.items() if each.settled == "bad"}
        return [each for each in self.advice.safe if each.base not in bad] if self.advice else []

    def as_json(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        said: dict[str, Any] = {"subject": self.subject.name}
        if self.subject.trained_with:
            said["optimizer"] = dict(self.subject.trained_with)
            said["assumed"] = list(self.subject.assumed)
        if self.advice:
            said |= self.advice.as_json()
        elif self.unexamined:
            said["not_examined"] = dict.fromkeys(self.unexamined, NOT_EXAMINED)
        if self.costs:
            rows = [each.as_json() for each in self.costs]
            said["predicted"] = {"interval_percent": SHARE, "rows": rows}
            if cautions := {cost.gpu.key: cost.caution for cost in self.costs if cost.caution}:
                said["predicted"]["cautions"] = cautions
        if self.choices:
            said["choices"] = [choice.as_json() for choice in self.choices]
        if self.verified:
            said["verified"] = {name: each.as_json() for name, each in self.verified.items()}
        return said


def answer(
    subject: Subject,
    recipes: Sequence[str],
    gpus: Sequence[Gpu] = (),
    *,
    forecaster: Forecaster | None = None,
    batch: int | None = None,
    seed: int = 0,
    budget: float | None = None,
    tell: Tell = silent,
) -> Answer:
    """Find the recipes to train a subject with; no short trainings verify them yet.

    Args:
        subject: The subject; it is not modified.
        recipes: Names of recipes, or names joined by "+".
        gpus: The GPUs to choose a recipe for; they need not be in this machine.
        forecaster: A forecaster that may already have traced steps of the subject; by default a
            new one.
        batch: For a new forecaster: samples of a micro-step in the predicted step.
        seed: The seed of all random numbers.
        budget: Seconds after which no further recipe is examined; None for no limit.
        tell: Called with a description of the next action.

    Raises:
        ValueError: If training in fp32 is not finite, a recipe is unknown, or cannot be traced.
    """
    clock = Clock(len(recipes), budget, tell)
    forecaster = forecaster or Forecaster(subject, batch=batch, tell=tell)
    try:
        order = by_worth(recipes, gpus, forecaster) if gpus else None
        advice = advices.advise(subject, recipes, order=order, seed=seed, clock=clock)
    except BudgetSpentError:
        costs = tuple(forecasts(forecaster, recipes, gpus, partly=True)) if gpus else ()
        needed = clock.needed(len(recipes))
        return Answer(subject, None, costs, unexamined=tuple(recipes), needed=needed)
    # The costs with exceptions take as long as those before: the budget need not end them.
    forecaster.check = lambda: None
    found = Answer(subject, advice, unexamined=advice.unexamined, needed=advice.needed)
    if not gpus:
        return found
    choices = solve(subject, advice, gpus, forecaster, seed=seed)
    costs = tuple(cost for choice in choices for cost in (choice.reference, *choice.costs))
    return replace(found, costs=costs, choices=tuple(choices))


def verify(found: Answer, verifier: Verifier) -> Answer:
    """Verify the recommended recipes in short trainings; replace each that is worse than fp32.

    After Ctrl-C, return the results so far; only the pair of trainings that was running is lost.

    Args:
        found: The answer before the verification.
        verifier: Runs pairs of short trainings of the subject.
    """
    verified: dict[str, Verification] = {}
    interrupted = False

    def is_bad(trial: Trial) -> bool:
        nonlocal interrupted
        if interrupted:
            return False
        if trial.base not in verified:
            try:
                verified[trial.base] = verifier.verify(trial.recipe)
            except KeyboardInterrupt:
                interrupted = True
                return False
        return verified[trial.base].settled == "bad"

    choices = []
    for choice in found.choices:
        left = choice
        while left.best and is_bad(left.best.trial):
            recipe = left.best.trial.base
            left = left.without(recipe, f"short trainings: {verified[recipe].said}")
        choices.append(left)
    if not found.choices and found.advice:
        for trial in found.advice.safe:
            if not is_bad(trial):
                break
    return replace(found, choices=tuple(choices), verified=verified, interrupted=interrupted)
