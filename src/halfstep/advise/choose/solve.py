"""Finds the safe recipe with the shortest predicted time on a GPU.

The cost of each recipe is predicted with its exceptions, from a trace of the engine's step, so that
the casts between a layer in fp32 and its neighbours count as kernels. Wider exceptions (a whole
module in place of its operators) need fewer casts. If they are predicted to be faster, they are
rehearsed together once, and used if the step is right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from halfstep.advise.choose.advice import MOST_PASSES, NOT_EXAMINED
from halfstep.advise.choose.drift import followed
from halfstep.advise.choose.rehearse import rehearse
from halfstep.advise.predict.forecast import GAIN
from halfstep.errors import UserError
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halfstep.advise.choose.advice import Advice
    from halfstep.advise.choose.trial import Trial
    from halfstep.advise.predict.forecast import Forecast, Forecaster
    from halfstep.advise.predict.gpus import Gpu
    from halfstep.advise.subject import Subject

WORTH = 0.99
"""Share of the time below which the time with wider exceptions is worth a rehearsal."""
AS_FAST = 1.05
"""Multiple of the shortest predicted time up to which other recipes count as equally fast."""


@dataclass(frozen=True, slots=True)
class Option:
    """A recipe with its exceptions, and its predicted cost."""

    trial: Trial
    cost: Forecast


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of a recipe for a GPU.

    Attributes:
        gpu: The GPU.
        reference: The step in fp32 on the GPU, with products in TF32 if the GPU supports TF32.
        options: The recipes that are worth using, in the order of their predicted time; of recipes
            that are as fast as the first (`AS_FAST`), those without a warning come first, then
            those with parameters in fp32. Where the reference fits into memory, a recipe that may
            be slower (the interval of its speed-up contains 1) is no option if it has a warning.
            Empty if no recipe is faster than the reference, nor fits where it does not.
        left: Why each other recipe is not an option, by recipe.
        costs: The predicted cost of every safe recipe, with its exceptions.
    """

    gpu: Gpu
    reference: Forecast
    options: tuple[Option, ...]
    left: dict[str, str]
    costs: tuple[Forecast, ...]

    @property
    def best(self) -> Option | None:
        """The option to use; None for the reference."""
        return self.options[0] if self.options else None

    @property
    def as_fast(self) -> tuple[Option, ...]:
        """The other options that are about as fast as the best one."""
        return tuple(
            each
            for each in self.options[1:]
            if each.cost.seconds.value <= AS_FAST * self.options[0].cost.seconds.value
        )

    def without(self, recipe: str, reason: str) -> Choice:
        """Return the choice without a recipe among the options, for a reason."""
        others = tuple(each for each in self.options if each.trial.base != recipe)
        return replace(self, options=others, left={**self.left, recipe: reason})

    def as_json(self) -> dict[str, Any]:
        """Return the choice as plain data; the recipe is None if nothing fits into memory."""
        stay = self.reference.recipe if self.reference.fits else None
        return {
            "gpu": self.gpu.key,
            "recipe": self.best.trial.base if self.best else stay,
            "config": self.best.trial.spec if self.best else None,
            "predicted": (self.best.cost if self.best else self.reference).as_json(),
            "next": [each.trial.base for each in self.options[1:]],
            "left": self.left,
            "memory_limit_bytes": self.reference.limit,
        }


def solve(
    subject: Subject,
    advice: Advice,
    gpus: Sequence[Gpu],
    forecaster: Forecaster,
    *,
    seed: int = 0,
) -> list[Choice]:
    """Choose a recipe for each GPU among the safe ones.

    Args:
        subject: The subject; it is not modified.
        advice: The safe recipes with their exceptions, and the reasons against the others.
        gpus: The GPUs.
        forecaster: Predicts steps of the subject.
        seed: The seed of the recipes' random numbers.

    Raises:
        UserError: If a step cannot be traced.
    """
    rehearsed: dict[str, bool] = {}

    def holds(trial: Trial) -> bool:
        """Tell whether a step is right with wider exceptions; rehearse them once for all GPUs."""
        key = str(trial.spec)
        if key not in rehearsed and advice.passes + 1 > MOST_PASSES:
            return False
        if key not in rehearsed:
            rehearsed[key] = _holds(subject, advice, trial, seed)
        return rehearsed[key]

    found = []
    for gpu in gpus:
        reference = forecaster.reference(gpu)
        left = {trial.base: trial.rejected for trial in advice.trials if trial.rejected}
        left |= dict.fromkeys(advice.unexamined, NOT_EXAMINED)
        options, costs = [], []
        for trial in advice.safe:
            try:
                option = _cheapest(trial, gpu, forecaster, holds)
            except UserError as error:  # a CPU does not run the same operators
                left[trial.base] = str(error)
                continue
            costs.append(option.cost)
            reason = _why_not(option, reference, has_warning=bool(advice.warnings(trial)))
            if reason:
                left[trial.base] = reason
            else:
                options.append(option)
        options.sort(key=lambda option: option.cost.seconds.value)
        options = _simplest_first(options, advice)
        found.append(Choice(gpu, reference, tuple(options), left, tuple(costs)))
    return found


def by_worth(recipes: Sequence[str], gpus: Sequence[Gpu], forecaster: Forecaster) -> list[str]:
    """Sort recipes, without exceptions, by their predicted speed-up on the GPUs, the largest first.

    For each recipe, the largest speed-up on any GPU counts. Recipes that cannot be traced, or that
    no GPU supports with enough memory, come last.

    Args:
        recipes: Names of recipes, or names joined by "+".
        gpus: The GPUs.
        forecaster: Predicts steps of the subject.
    """

    def shortest(name: str) -> float:
        try:
            costs = [(forecaster.predict(find_recipe(name), gpu), gpu) for gpu in gpus]
        except UserError:  # a CPU does not run the same operators
            return math.inf
        return min(
            (
                cost.seconds.value / forecaster.reference(gpu).seconds.value
                for cost, gpu in costs
                if cost.fits and not cost.lacks
            ),
            default=math.inf,
        )

    return sorted(recipes, key=shortest)


def _simplest_first(options: list[Option], advice: Advice) -> list[Option]:
    """Move the simplest of the options that are about as fast as the first to the front.

    An option without warnings comes first, then one that leaves the parameters in fp32.
    """
    alike = [
        each
        for each in options
        if each.cost.seconds.value <= AS_FAST * options[0].cost.seconds.value
    ]
    alike.sort(key=lambda each: (bool(advice.warnings(each.trial)), _has_half_parameters(each)))
    return [*alike, *options[len(alike) :]]


def _has_half_parameters(option: Option) -> bool:
    return option.trial.recipe.gradient_format is not None


def _why_not(option: Option, reference: Forecast, *, has_warning: bool) -> str:
    cost, format_ = option.cost, option.trial.recipe.product_format
    if format_ != "fp32" and not cost.gpu.has(format_):
        return f"{cost.gpu.name} has no units for {format_}"
    if not cost.fits:
        needed, most = cost.memory / 2**30, cost.limit / 2**30
        return f"predicted to need {needed:.1f} GiB; the limit is {most:.1f} GiB"
    faster = reference.seconds.value / cost.seconds.value
    if reference.fits and faster < GAIN:
        return f"no gain: predicted {faster:.2f} times as fast as {reference.recipe}"
    if reference.fits and has_warning and cost.speed_up and cost.speed_up.low < 1:
        return (
            f"it has a warning, and its gain is not certain: predicted {faster:.2f} "
            f"[{cost.speed_up.low:.2f}, {cost.speed_up.high:.2f}] times as fast as "
            f"{reference.recipe}"
        )
    return ""


def _cheapest(
    trial: Trial, gpu: Gpu, forecaster: Forecaster, holds: Callable[[Trial], bool]
) -> Option:
    """Return a recipe with the cheapest exceptions under which a step is right."""
    best = Option(trial, forecaster.predict(trial.recipe, gpu))
    wider = [Option(each, forecaster.predict(each.recipe, gpu)) for each in _wider(trial)]
    for option in sorted(wider, key=lambda each: each.cost.seconds.value):
        if option.cost.seconds.value < WORTH * best.cost.seconds.value and holds(option.trial):
            return option
    return best


def _wider(trial: Trial) -> Iterator[Trial]:
    """Yield the recipe twice with wider exceptions: modules for operators, parents for modules."""
    names = dict.fromkeys(trial.exceptions)
    modules = {site.pattern: site.module for site in trial.damages if not site.is_whole_module}
    for _ in range(2):
        wider = dict.fromkeys(
            modules.get(name) or name.rpartition(".")[0] or name for name in names
        )
        if wider == names or "" in wider:
            return
        names = wider
        reasons = dict.fromkeys(names, "fewer casts than with single operators in fp32")
        spec = {**trial.spec, "exceptions": dict.fromkeys(names, "fp32")}
        lines = {
            name: next((line for at, line in trial.lines.items() if at.startswith(name)), "")
            for name in names
        }
        yield replace(trial, recipe=find_recipe(spec), exceptions=reasons, lines=lines)


def _holds(subject: Subject, advice: Advice, trial: Trial, seed: int) -> bool:
    recorded, recipe = advice.recorded, trial.recipe
    found = rehearse(subject, recorded, recipe, seed=seed)
    found = followed(found, subject, recorded, recipe, seed=seed)
    advice.trial(trial.base).passes += 1
    trial.rehearsal = found
    return not found.wrong(recipe)
