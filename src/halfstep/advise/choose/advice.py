"""Which of several recipes a model should be trained under, and why not under the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halfstep.advise.choose.clock import BudgetSpentError, Clock
from halfstep.advise.choose.decay import lost_later
from halfstep.advise.choose.record import record
from halfstep.advise.choose.survive import survive
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.advise.choose.record import Record
    from halfstep.advise.choose.trial import Trial
    from halfstep.advise.subject import Subject

CANDIDATES = ("bf16", "fp16", "o2", "bf16-sr", "half-bn32")
"""What is tried by default: autocast, half parameters with masters, and without."""
MOST_PASSES = 60
"""Forward and backward passes that advice takes of up to eight recipes, recorded steps included."""
FEWEST_PASSES = 6.5
"""Of them, for each recipe: what if, rehearsals of two steps, the first loss scale, and a rate that
decays."""
LITTLE_HEADROOM = 2
"""Bits below which training may soon overflow although it does not yet."""
NOT_EXAMINED = "not examined (time budget)"
"""All that is said of a recipe for which no time was left."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What is advised on a model.

    Attributes:
        subject: Its name.
        recorded: The fp32 steps that it rests on.
        trials: One for each recipe, in the order that they were asked for.
        later: What a learning rate that decays does to recipes, by their names.
        unexamined: The recipes for which the time budget left no time; nothing is known of them.
        needed: About how many seconds all of it takes; exact where nothing is unexamined.
    """

    subject: str
    recorded: Record
    trials: tuple[Trial, ...]
    later: Mapping[str, str] = field(default_factory=dict)
    unexamined: tuple[str, ...] = ()
    needed: float = 0.0

    def trial(self, base: str) -> Trial:
        """Return what became of a recipe."""
        return next(trial for trial in self.trials if trial.base == base)

    @property
    def safe(self) -> list[Trial]:
        """The recipes that the model survives."""
        return [trial for trial in self.trials if not trial.rejected]

    def warnings(self, trial: Trial) -> list[str]:
        """Return what to mind in training under a recipe that is safe now."""
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
    """Record eight fp32 steps of a training, and try recipes on them.

    Args:
        subject: What is trained; it is left as it is.
        recipes: Names, or names joined by "+".
        order: The same, in the order in which they are examined.
        seed: Of whatever is random.
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
            trial = survive(subject, recorded, name, seed=seed, most=most - 1, clock=clock)
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
