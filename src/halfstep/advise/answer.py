"""The whole answer on a subject: what it survives, what that costs, what to train under.

It is brought together here, and printed (`choose/show.py`, `table.py`) and written (`report`) from
here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from halfstep.advise.choose import advice as advices
from halfstep.advise.choose.advice import NOT_EXAMINED
from halfstep.advise.choose.clock import BudgetSpentError, Clock, silent
from halfstep.advise.choose.solve import Choice, by_worth, solve
from halfstep.advise.forecast import SHARE, Forecast, Forecaster, forecasts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.advise.choose.advice import Advice
    from halfstep.advise.choose.clock import Tell
    from halfstep.advise.choose.trial import Trial
    from halfstep.advise.choose.verify import Verification, Verifier
    from halfstep.advise.gpus import Gpu
    from halfstep.advise.subject import Subject


@dataclass(frozen=True, slots=True)
class Answer:
    """What is advised.

    Attributes:
        subject: On what.
        advice: What it survives; None where only the cost was asked for.
        costs: What recipes cost, with the exceptions that they need.
        choices: What to train under, a GPU each.
        verified: What short trainings said, by recipe.
        interrupted: Whether a Ctrl-C ended these.
        unexamined: The recipes for which the time budget left no time; nothing is known of them.
        needed: About how many seconds it takes to examine all.
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
        """The recipes to train under: those of the GPUs, or the first one that holds."""
        chosen = [choice.best.trial for choice in self.choices if choice.best]
        if self.choices:
            return list({trial.base: trial for trial in chosen}.values())
        return self._holding[:1]

    @property
    def advice_with_exceptions(self) -> list[Trial]:
        """The recipes that hold and are not only a name."""
        return [each for each in self._holding if len(each.spec) > 1]

    @property
    def _holding(self) -> list[Trial]:
        bad = {name for name, each in self.verified.items() if each.settled == "bad"}
        return [each for each in self.advice.safe if each.base not in bad] if self.advice else []

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
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
    """Find what to train a subject under; nothing is verified yet.

    Args:
        subject: What is trained; it is left as it is.
        recipes: Names, or names joined by "+".
        gpus: On which GPUs that are not here.
        forecaster: What has traced steps of the subject already; a new one by default.
        batch: For a new one: samples of the step that is costed.
        seed: Of whatever is random.
        budget: Seconds after which no recipe is examined any more; None for no limit.
        tell: Is told what is done next.

    Raises:
        ValueError: If training in fp32 is not finite, a recipe is unknown, or cannot be traced.
    """
    clock = Clock(len(recipes), budget, tell)
    forecaster = forecaster or Forecaster(subject, batch=batch, tell=tell)
    order = by_worth(recipes, gpus, forecaster) if gpus else None
    try:
        advice = advices.advise(subject, recipes, order=order, seed=seed, clock=clock)
    except BudgetSpentError:
        costs = tuple(forecasts(forecaster, recipes, gpus, partly=True))
        needed = clock.needed(len(recipes))
        return Answer(subject, None, costs, unexamined=tuple(recipes), needed=needed)
    found = Answer(subject, advice, unexamined=advice.unexamined, needed=advice.needed)
    if not gpus:
        return found
    choices = solve(subject, advice, gpus, forecaster, seed=seed)
    costs = tuple(cost for choice in choices for cost in (choice.reference, *choice.costs))
    return replace(found, costs=costs, choices=tuple(choices))


def verify(found: Answer, verifier: Verifier) -> Answer:
    """Train what is recommended beside fp32, and what comes next where that turns out bad.

    After a Ctrl-C the answer is what is known by then: nothing is lost but the pair that ran.

    Args:
        found: What is recommended so far.
        verifier: Trains pairs of the subject.
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
