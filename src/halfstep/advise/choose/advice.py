"""Which of several recipes a model should be trained under, and why not under the others."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halfstep.advise.choose.decay import lost_later
from halfstep.advise.choose.record import record
from halfstep.advise.choose.survive import survive
from halfstep.show import units

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from halfstep.advise.choose.record import Record
    from halfstep.advise.choose.trial import Trial
    from halfstep.advise.subject import Subject

_WORTH_TELLING = 60
"""Seconds from which the time that is left is told."""
CANDIDATES = ("bf16", "fp16", "o2", "bf16-sr", "half-bn32")
"""What is tried by default: autocast, half parameters with masters, and without."""
MOST_PASSES = 60
"""Forward and backward passes that advice takes of up to eight recipes, recorded steps included."""
FEWEST_PASSES = 6
"""Of them, for each recipe: what if, a rehearsal, the first loss scale, and a rate that decays."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What is advised on a model.

    Attributes:
        subject: Its name.
        recorded: The fp32 steps that it rests on.
        trials: One for each recipe, in the order that they were asked for.
        later: What a learning rate that decays does to recipes, by their names.
    """

    subject: str
    recorded: Record
    trials: tuple[Trial, ...]
    later: Mapping[str, str] = field(default_factory=dict)

    def trial(self, base: str) -> Trial:
        """Return what became of a recipe."""
        return next(trial for trial in self.trials if trial.base == base)

    @property
    def safe(self) -> list[Trial]:
        """The recipes that the model survives."""
        return [trial for trial in self.trials if not trial.rejected]

    @property
    def passes(self) -> float:
        """Forward and backward passes that it all took."""
        return self.recorded.steps + sum(trial.passes for trial in self.trials)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
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
        }


def advise(
    subject: Subject,
    recipes: Sequence[str] = CANDIDATES,
    *,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> Advice:
    """Record eight fp32 steps of a training, and try recipes on them.

    Args:
        subject: What is trained; it is left as it is.
        recipes: Names, or names joined by "+".
        seed: Of whatever is random.
        tell: Is told what is done next.

    Raises:
        ValueError: If training in fp32 is not finite, or a recipe is unknown.
    """
    began = time.monotonic()
    tell("fp32")
    recorded = record(subject, seed=seed)
    trials: list[Trial] = []
    later = {}
    for place, name in enumerate(recipes):
        spent = recorded.steps + sum(trial.passes for trial in trials)
        tell(name + _left((time.monotonic() - began) / spent, len(recipes) - place))
        others = FEWEST_PASSES * (len(recipes) - place - 1)
        most = max(FEWEST_PASSES, MOST_PASSES - spent - others)
        trial = survive(subject, recorded, name, seed=seed, most=most - 1)
        trials.append(trial)
        if not trial.rejected and (said := lost_later(subject, recorded, trial, seed=seed)):
            later[trial.base] = said
    return Advice(subject.name, recorded, tuple(trials), later)


def _left(a_pass: float, recipes: int) -> str:
    """Say about how long the recipes that are left take, from the seconds of a pass so far."""
    seconds = a_pass * FEWEST_PASSES * recipes
    if seconds < _WORTH_TELLING:
        return ""
    return f"; about {units.duration(seconds)} left, at {units.duration(a_pass)} a pass"
