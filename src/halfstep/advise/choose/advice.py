"""Examines several recipes for a model: which ones are safe, and why the others are not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halfstep.advise.budget import BudgetSpentError
from halfstep.advise.choose.clock import Clock
from halfstep.advise.choose.decay import lost_later
from halfstep.advise.choose.exceptions import find_exceptions
from halfstep.advise.choose.record import record
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.advise.choose.record import Record
    from halfstep.advise.choose.trial import Trial
    from halfstep.advise.subject import Subject

CANDIDATES = ("bf16", "fp16", "o2", "bf16-sr", "half-bn32")
"""Recipes examined by default: autocast, then half-precision parameters with and without master
weights."""
MOST_PASSES = 60
"""Maximum forward and backward passes for up to eight recipes, including the recorded steps."""
FEWEST_PASSES = 6.5
"""Minimum passes for each recipe: `single_calls.py`, rehearsals of two steps, the initial loss
scale, and the check of a decayed learning rate."""
LITTLE_HEADROOM = 2
"""Bits of headroom below which training may soon overflow."""
NOT_EXAMINED = "not examined (time budget)"
"""The text about a recipe for which no time was left."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The examined recipes for a model.

    Attributes:
        subject: The name of the subject.
        recorded: The recorded steps in fp32.
        trials: The trial of each examined recipe, in the order of the request.
        later: Warnings about a decayed learning rate, by recipe.
        unexamined: The recipes that were not examined because the time budget was spent; nothing
            is known about their safety.
        needed: The estimated time to examine all recipes, in seconds; if all were examined, the
            time that it took.
    """

    subject: str
    recorded: Record
    trials: tuple[Trial, ...]
    later: Mapping[str, str] = field(default_factory=dict)
    unexamined: tuple[str, ...] = ()
    needed: float = 0.0

    def trial(self, base: str) -> Trial:
        """Return the trial of a recipe."""
        return next(trial for trial in self.trials if trial.base == base)

    @property
    def safe(self) -> list[Trial]:
        """The trials of the safe recipes."""
        return [trial for trial in self.trials if not trial.rejected]

    def warnings(self, trial: Trial) -> list[str]:
        """Return the warnings about training under a safe recipe."""
        if trial.rejected:
            return []
        bits, at = trial.headroom
        said = []
        if bits < LITTLE_HEADROOM:
            left = counted(round(bits), "bit")
            said.append(f"{at} is {left} from overflow; run advise again later in training")
        later = self.later.get(trial.base)
        return [*said, later] if later else said

    @property
    def passes(self) -> float:
        """The forward and backward passes of all recipes and of the recorded steps."""
        return self.recorded.steps + sum(trial.passes for trial in self.trials)

    def as_json(self) -> dict[str, Any]:
        """Return the examined recipes as plain data."""
        return {
            "subject": self.subject,
            "fp32_steps": self.recorded.steps,
            "passes": round(self.passes, 2),
            "noise_ratio": self.recorded.noise_ratio,
            "recipes": [
                {
                    **trial.as_json(),
                    "first_loss_scale": trial.recipe.scaling.init if trial.recipe.scaling else None,
                    "later": self.later.get(trial.base, ""),
                }
                for trial in self.trials
            ],
            "not_examined": dict.fromkeys(self.unexamined, NOT_EXAMINED),
        }


def advise(
    subject: Subject,
    recipes: Sequence[str] = CANDIDATES,
    *,
    order: Sequence[str] | None = None,
    seed: int = 0,
    clock: Clock | None = None,
) -> Advice:
    """Record eight fp32 steps of a training, and examine recipes on them.

    Args:
        subject: The subject; it is not modified.
        recipes: Names of recipes, or names joined by "+".
        order: The same names in the order of examination; by default the order of `recipes`.
        seed: The seed of all random numbers.
        clock: Counts steps and passes, and may end the search.

    Raises:
        ValueError: If training in fp32 is not finite, or a recipe is unknown.
        BudgetSpentError: If the clock ends the recording.
    """
    clock = clock or Clock(len(recipes))
    recorded = record(subject, seed=seed, before=clock.recording)
    trials: dict[str, Trial] = {}
    later = {}
    for place, name in enumerate(order or recipes):
        spent = recorded.steps + sum(trial.passes for trial in trials.values())
        others = FEWEST_PASSES * (len(recipes) - place - 1)
        most = max(FEWEST_PASSES, MOST_PASSES - spent - others)
        try:
            clock.examining(name)
            trial = find_exceptions(subject, recorded, name, seed=seed, most=most - 1, clock=clock)
            said = ""
            if not trial.rejected:
                said = lost_later(subject, recorded, trial, seed=seed, before=clock.passing)
        except BudgetSpentError:
            continue
        trials[name] = trial
        if said:
            later[trial.base] = said
    unexamined = tuple(name for name in recipes if name not in trials)
    return Advice(
        subject.name,
        recorded,
        tuple(trials[name] for name in recipes if name in trials),
        later,
        unexamined,
        clock.needed(len(unexamined)),
    )
