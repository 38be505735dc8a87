"""Verifies recipes in pairs of short trainings: one in fp32, one under the recipe.

Both trainings of a pair have the same initial weights, batches and random numbers. They are
compared by their final losses: the mean loss of the last quarter of the steps. The learning rate
follows the config's schedule, shortened to these steps; without a config it is constant.

The limit for the difference of the final losses comes from the spread of fp32's final loss between
seeds, but is at most a tenth of the decrease of the loss in training. A recipe is good if the whole
confidence interval of the paired difference is within the limit, and bad if the whole interval is
beyond the limit. Pairs are trained until one of the two is the case.
"""

from __future__ import annotations

import math
import statistics
import time
import zlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from halfstep.advise.budget import BudgetSpentError
from halfstep.advise.choose.clock import silent, time_left
from halfstep.advise.random_numbers import RandomNumbers
from halfstep.advise.subject import BATCHES
from halfstep.engine import Engine
from halfstep.errors import reason
from halfstep.mechanisms.loss_scale.scaler import LossScaleCollapse
from halfstep.plurals import counted
from halfstep.recipe import recipe as find_recipe
from halfstep.statistics import estimate

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.advise.choose.clock import Tell
    from halfstep.advise.subject import Subject
    from halfstep.recipe import Recipe

STEPS = 100
"""Steps of each training, if the budget suffices."""
FEWEST_STEPS = 20
"""Minimum steps of each training; a shorter training is not informative."""
_WARM, _TIMED = 2, 4  # steps before the time of a step is known
_SLACK = 1.2  # how far off the estimate of the time left may be
_PLANNED = 0.5  # the share of the budget that is planned; other programs may slow steps down
PAIRS = 8
FEWEST_PAIRS = 3
"""Minimum pairs to estimate the spread between seeds."""
NOISE = 2.0
"""Limit for the difference, in standard deviations of fp32's final loss between seeds."""
LEAST, MOST = 0.01, 0.1
"""Lower and upper bound of that limit, as shares of the decrease of the loss in training, if the
spread between seeds is very small or very large."""
MOVED = 0.05
"""The least decrease of fp32's loss, as a share of its first value, for runs that show much."""

_FP32 = find_recipe("fp32")

Settled = Literal["good", "bad", "open"]


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of short trainings under a recipe.

    Attributes:
        recipe: The name of the recipe.
        settled: "good", "bad", or "open" if time or pairs ran out before a result.
        said: The reason, in one line.
        steps: Steps of each training.
        fp32: Final losses in fp32, one per pair.
        losses: Final losses under the recipe, for the same pairs.
    """

    recipe: str
    settled: Settled
    said: str
    steps: int
    fp32: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "settled": self.settled,
            "said": self.said,
            "steps": self.steps,
            "pairs": len(self.losses),
            "fp32_losses": list(self.fp32),
            "losses": list(self.losses),
        }


@dataclass(slots=True)
class Verifier:
    """Verifies recipes for one subject; all recipes share the trainings in fp32.

    Args:
        subject: The subject; it is not modified.
        seed: The seed of the first pair.
        budget: The time budget for all trainings, in seconds; None for no limit.
        tell: Called with a description of the next action, and its progress.
        steps: Steps of each training; reduced if the budget does not suffice.
        recipes: Number of recipes to verify, between which the budget is divided.
    """

    subject: Subject
    seed: int = 0
    budget: float | None = None
    tell: Tell = silent
    steps: int = STEPS
    recipes: int = 1
    _began: float = field(init=False, default_factory=time.monotonic)
    _taken: dict[str, float] = field(init=False, default_factory=dict)  # by a training, in s
    _fp32: list[_Curve] = field(init=False, default_factory=list)

    def verify(self, recipe: Recipe) -> Verification:
        """Train pairs until it is clear whether a recipe trains as well as fp32.

        Raises:
            ValueError: If the training in fp32 fails or its loss is not finite.
        """
        if not self._fp32:
            try:
                self._fit_budget(recipe)
            except BudgetSpentError:
                self.steps = FEWEST_STEPS
                return self._result(recipe, [], "open", self._spent(recipe, 0))
        losses: list[float] = []
        for pair in range(PAIRS):
            try:
                curve = self._train_pair(recipe, pair)
            except BudgetSpentError:
                return self._result(recipe, losses, "open", self._spent(recipe, pair))
            if curve.broke:
                return self._result(recipe, losses, "bad", f"pair {pair + 1}: {curve.broke}")
            losses.append(curve.last)
            settled, said = self._judged(losses)
            if settled != "open":
                return self._result(recipe, losses, settled, said)
        return self._result(recipe, losses, "open", said)

    def _judged(self, losses: list[float]) -> tuple[Settled, str]:
        fp32 = self._fp32[: len(losses)]
        if len(losses) < FEWEST_PAIRS:
            return "open", f"too few pairs ({len(losses)})"
        differences = [mine - each.last for mine, each in zip(losses, fp32, strict=True)]
        found = estimate(differences)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        lowered = statistics.fmean(each.first - each.last for each in fp32)
        spread = statistics.stdev(each.last for each in fp32)
        most = NOISE * spread
        if lowered > 0:
            most = max(LEAST * lowered, min(most, MOST * lowered))
        said = (
            f"final loss minus that of fp32: {found.mean:+.2g} "
            f"[{found.low:+.2g}, {found.high:+.2g}], limit {most:+.2g}; "
            f"{len(losses)} pairs of runs of {self.steps} steps{self._rates}{self._alike}"
        )
        begun = statistics.fmean(each.first for each in fp32)
        if lowered < MOVED * abs(begun):
            said += (
                f"; but fp32's loss hardly decreased ({begun:.3g} to {begun - lowered:.3g}), so "
                "these runs cannot show a difference that appears later"
            )
        if found.high <= most:
            return "good", said
        return ("bad" if found.low > most else "open"), said

    @property
    def _rates(self) -> str:
        scheduled = self.subject.schedule is not None
        return ", with the schedule shortened" if scheduled else ", at a constant learning rate"

    @property
    def _alike(self) -> str:
        found = {curve.batches for curve in self._fp32}
        if len(found) > 1 or found == {0}:
            return ""
        return (
            "; every pair had the same batches in the same order: if your training shuffles, the "
            "function of --batches should shuffle too, and must not set the random seed"
        )

    def _train_pair(self, recipe: Recipe, pair: int) -> _Curve:
        """Return a recipe's training; the training in fp32 precedes it if it is not known yet.

        Raises:
            BudgetSpentError: If the budget does not suffice.
            ValueError: If the training in fp32 fails or its loss is not finite.
        """
        if pair == len(self._fp32):
            reference = self._train(_FP32, pair, verified=recipe)
            if reference.broke:
                raise ValueError(
                    f"{reference.broke} in fp32; advise needs a model that trains in fp32: lower "
                    "the learning rate"
                )
            self._fp32.append(reference)
        return self._train(recipe, pair, verified=recipe)

    def _train(self, recipe: Recipe, pair: int, *, verified: Recipe) -> _Curve:
        """Train under a recipe, as one half of a pair that verifies a recipe.

        Raises:
            BudgetSpentError: If the budget does not suffice for the fewest pairs, or for this one.
        """
        began = time.monotonic()

        def before(step: int) -> None:
            elapsed = time.monotonic() - began
            if step >= _WARM + _TIMED:
                self._taken[recipe.name] = elapsed / step * self.steps
            needed = self._needed(verified, max(FEWEST_PAIRS, pair + 1), trained=pair)
            left = max(0.0, needed - elapsed)
            if not self._allows(left / _SLACK):
                raise BudgetSpentError  # Now, because the runs so far settle nothing.
            detail = f"step {step + 1} of {self.steps}{time_left(left)}"
            pairs = f"pair {pair + 1} ({FEWEST_PAIRS} to {PAIRS} pairs)"
            self.tell(f"verification: {recipe.name.rstrip('*')}, {pairs}", detail)

        return _train(self.subject, recipe, self.seed + pair, self.steps, before)

    def _fit_budget(self, recipe: Recipe) -> None:
        """Reduce the number of steps if the budget does not suffice for the minimum of pairs.

        Raises:
            BudgetSpentError: If the budget does not suffice for the fewest steps either.
        """
        if self.budget is None:
            return
        fp32, other = (self._step_time(each, recipe) for each in (_FP32, recipe))
        affordable = _PLANNED * self._left / (FEWEST_PAIRS * (fp32 + self.recipes * other))
        self.steps = max(FEWEST_STEPS, min(self.steps, int(affordable)))
        self._taken = {_FP32.name: fp32 * self.steps, recipe.name: other * self.steps}

    def _step_time(self, recipe: Recipe, verified: Recipe) -> float:
        """Return the median time of a few steps under a recipe, in seconds."""
        begun: list[float] = []

        def before(step: int) -> None:
            begun.append(time.monotonic())
            if step > _WARM + 1:
                each = min(later - earlier for earlier, later in pairwise(begun[_WARM:]))
                self._taken[recipe.name] = FEWEST_STEPS * each
            if not self._allows(self._needed(verified, FEWEST_PAIRS, trained=0)):
                raise BudgetSpentError

        _train(self.subject, recipe, self.seed, _WARM + _TIMED, before)
        begun.append(time.monotonic())
        # The median leaves out a step that other programs slowed down.
        taken = [later - earlier for earlier, later in pairwise(begun)]
        return statistics.median(taken[_WARM:] or taken)

    def _needed(self, recipe: Recipe, pairs: int, *, trained: int) -> float:
        """Return the time to complete pairs of which some are trained, in seconds.

        A training whose time is not known yet counts 0.
        """
        references = max(0, pairs - len(self._fp32))
        fp32, own = (self._taken.get(each.name, 0.0) for each in (_FP32, recipe))
        return references * fp32 + (pairs - trained) * own

    def _allows(self, seconds: float) -> bool:
        """Return whether so many more seconds are within the budget."""
        return seconds <= self._left

    @property
    def _left(self) -> float:
        """The rest of the budget, in seconds; below 0 after its end."""
        return math.inf if self.budget is None else self._began + self.budget - time.monotonic()

    def _spent(self, recipe: Recipe, pairs: int) -> str:
        if pairs >= FEWEST_PAIRS:
            return (
                f"no time is left for more than {counted(pairs, 'pair')} of runs of {self.steps} "
                "steps; a larger --budget may give a clear result"
            )
        needed = self._needed(recipe, FEWEST_PAIRS, trained=pairs)
        if not needed:
            return "no time is left for it; a larger --budget may give a clear result"
        about = "about" if recipe.name in self._taken else "more than"
        return (
            f"{FEWEST_PAIRS} pairs of runs of {self.steps} steps would take {about} {needed:.0f} s "
            f"more, and {max(0.0, self._left):.0f} of the {self.budget:.0f} s for the verification "
            "are left; a larger --budget gives it more time, and OMP_NUM_THREADS=1 makes it faster "
            "if other programs use the processor"
        )

    def _result(
        self, recipe: Recipe, losses: list[float], settled: Settled, said: str
    ) -> Verification:
        fp32 = tuple(each.last for each in self._fp32[: len(losses)])
        return Verification(recipe.name, settled, said, self.steps, fp32, tuple(losses))


@dataclass(frozen=True, slots=True)
class _Curve:
    """The mean loss of a training's first and of its last quarter.

    Attributes:
        first: Mean loss of the first quarter.
        last: Mean loss of the last quarter: the final loss.
        broke: Why the training failed; "" if it did not fail.
        batches: A checksum of the first batches, to detect trainings on the same batches.
    """

    first: float
    last: float
    broke: str = ""
    batches: int = 0


def _train(
    subject: Subject,
    recipe: Recipe,
    seed: int,
    steps: int,
    before: Callable[[int], None] = lambda _: None,
) -> _Curve:
    model = subject.copied()
    optimizer = subject.optimizer(model)
    scheduler = None
    if subject.schedule:
        scheduler = subject.schedule(optimizer, max(1, steps // subject.accumulate))
    losses: list[float] = []
    batches = 0
    try:
        with (
            Engine(
                model,
                optimizer,
                recipe=recipe,
                accumulate=subject.accumulate,
                clip_norm=subject.clip_norm,
                scheduler=scheduler,
                seed=seed,
                nonfinite="apply",
            ) as engine,
            RandomNumbers(seed).drawn(),
        ):
            for step, batch in zip(range(steps), subject.training(seed), strict=False):
                before(step)
                if step < BATCHES:
                    batches = _checksum(batch, batches)
                with engine.autocast():
                    loss = subject.loss(engine.model, batch)
                engine.backward(loss)
                engine.step()
                losses.append(float(loss.detach()))
                if not math.isfinite(losses[-1]):
                    return _Curve(
                        math.nan, math.nan, f"the loss is {losses[-1]} in step {len(losses)}"
                    )
    except (LossScaleCollapse, RuntimeError) as error:
        failed = f"step {len(losses) + 1} fails ({reason(error)})"
        return _Curve(math.nan, math.nan, failed)
    quarter = max(1, steps // 4)
    first, last = statistics.fmean(losses[:quarter]), statistics.fmean(losses[-quarter:])
    return _Curve(first, last, batches=batches)


def _checksum(batch: Any, before: int) -> int:
    """Return a checksum of a batch's tensors, continued from the checksum of earlier batches."""
    for leaf in tree_leaves(batch):
        is_plain = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
        if is_plain and not leaf.is_complex():
            values = leaf.detach().cpu().flatten().view(torch.uint8)
            before = zlib.crc32(values.numpy(), before)
    return before
