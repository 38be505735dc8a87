"""Short paired trainings: a recipe beside fp32, from the same weights, on the same batches.

Both of a pair draw the same random numbers. What counts is the mean loss of the last quarter of
their steps. The learning rate follows the config's schedule, shortened to these steps, so that it
rises and falls as it will; without a config it is constant. A recipe is good once the whole
confidence interval of the paired difference is within what another seed does to fp32 and a tenth of
what training lowers the loss by, and bad once all of it is beyond; pairs are run until then.
"""

from __future__ import annotations

import math
import statistics
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from halfstep.advise.choose.clock import BudgetSpentError, silent, time_left
from halfstep.advise.random_numbers import RandomNumbers
from halfstep.advise.subject import BATCHES
from halfstep.compare.rows.statistics import estimate
from halfstep.engine import Engine
from halfstep.errors import reason
from halfstep.plurals import counted
from halfstep.recipe import recipe as find_recipe
from halfstep.techniques import LossScaleCollapse

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.advise.choose.clock import Tell
    from halfstep.advise.subject import Subject
    from halfstep.recipe import Recipe

STEPS = 100
"""Of one training, where the budget does not ask for fewer."""
FEWEST_STEPS = 20
"""Below which a training tells nothing."""
PAIRS = 8
FEWEST_PAIRS = 3
"""As many as the spread between seeds takes."""
NOISE = 2.0
"""Standard deviations of fp32's loss between seeds that a recipe may be worse by."""
LEAST, MOST = 0.01, 0.1
"""Shares of what training lowers the loss by: up to the first is no difference, however alike seeds
are; beyond the second is one, however much the batches of other seeds change the loss."""

Settled = Literal["good", "bad", "open"]


@dataclass(frozen=True, slots=True)
class Verification:
    """What short trainings say of a recipe.

    Attributes:
        recipe: Its name.
        settled: "good", "bad", or "open" where time or pairs ran out before it was settled.
        said: Why, in a line.
        steps: Of each training.
        fp32: Last losses in fp32, one a pair.
        losses: Last losses under the recipe, of the same pairs.
    """

    recipe: str
    settled: Settled
    said: str
    steps: int
    fp32: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
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
    """Verifies recipes of one subject; fp32 is trained once for all of them.

    Args:
        subject: What is trained; it is left as it is.
        seed: Of the first pair.
        budget: Seconds that all of it may take; None for no limit.
        tell: Is told what is trained next.
        steps: Of each training; fewer where the budget asks for it.
    """

    subject: Subject
    seed: int = 0
    budget: float | None = None
    tell: Tell = silent
    steps: int = STEPS
    _began: float = field(init=False, default_factory=time.monotonic)
    _longest: float = field(init=False, default=0.0)
    _fp32: list[_Curve] = field(init=False, default_factory=list)

    def verify(self, recipe: Recipe) -> Verification:
        """Train pairs until it is settled whether a recipe trains as fp32 does.

        Raises:
            ValueError: If fp32 itself does not stay finite.
        """
        if not self._fp32:
            self._fit_budget()
        losses: list[float] = []
        for pair in range(PAIRS):
            if not self._time_left(2 if pair == len(self._fp32) else 1):
                return self._result(recipe, losses, "open", self._spent(len(losses)))
            try:
                if pair == len(self._fp32):
                    self._fp32.append(self._reference(pair))
                curve = self._train(recipe, pair)
            except BudgetSpentError:
                return self._result(recipe, losses, "open", self._spent(len(losses)))
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
            f"final loss {found.mean:+.2g} [{found.low:+.2g}, {found.high:+.2g}] compared with "
            f"fp32, mean of {len(losses)} pairs of {self.steps} steps{self._rates}; limit "
            f"{most:+.2g}{self._alike}"
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

    def _reference(self, pair: int) -> _Curve:
        curve = self._train(find_recipe("fp32"), pair)
        if curve.broke:
            raise ValueError(
                f"{curve.broke} in fp32; advise needs a training that works in fp32: lower the "
                "learning rate"
            )
        return curve

    def _train(self, recipe: Recipe, pair: int) -> _Curve:
        began = time.monotonic()

        def before(step: int) -> None:
            if self.budget is not None and time.monotonic() - self._began > self.budget:
                raise BudgetSpentError
            left = (time.monotonic() - began) / step * (self.steps - step) if step else 0.0
            detail = f"step {step + 1} of {self.steps}{time_left(left)}"
            self.tell(f"{recipe.name.rstrip('*')}, pair {pair + 1}", detail)

        curve = _train(self.subject, recipe, self.seed + pair, self.steps, before)
        self._longest = max(self._longest, time.monotonic() - began)
        return curve

    def _fit_budget(self) -> None:
        """Take fewer steps where the budget would not do for the fewest pairs."""
        if self.budget is None:
            return
        warm, timed = 2, 4
        if not self._time_left(0):
            return
        began = time.monotonic()
        _train(self.subject, find_recipe("fp32"), self.seed, warm)
        each = (time.monotonic() - began) / warm
        if time.monotonic() + timed * each > self._began + self.budget:
            self.steps, self._longest = FEWEST_STEPS, each * FEWEST_STEPS
            return
        began = time.monotonic()
        _train(self.subject, find_recipe("fp32"), self.seed, timed)
        each = (time.monotonic() - began) / timed
        # A third is left for recipes that are slower than fp32, as rehearsed ones are.
        affordable = 2 / 3 * (self.budget - (time.monotonic() - self._began)) / each
        self.steps = max(FEWEST_STEPS, min(self.steps, int(affordable / (2 * FEWEST_PAIRS))))
        self._longest = each * self.steps

    def _time_left(self, trainings: int) -> bool:
        if self.budget is None:
            return True
        return time.monotonic() - self._began + trainings * self._longest <= self.budget

    def _spent(self, pairs: int) -> str:
        return (
            f"the time budget leaves no time for more than {counted(pairs, 'pair')} of "
            f"{self.steps} steps; a larger --budget may give a clear result"
        )

    def _result(
        self, recipe: Recipe, losses: list[float], settled: Settled, said: str
    ) -> Verification:
        fp32 = tuple(each.last for each in self._fp32[: len(losses)])
        return Verification(recipe.name, settled, said, self.steps, fp32, tuple(losses))


@dataclass(frozen=True, slots=True)
class _Curve:
    """Losses of a training: the mean of its first and of its last quarter, and what broke it.

    The first batches are known by a checksum, so that trainings on the same ones are noticed.
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
    scheduler = subject.schedule(optimizer, steps) if subject.schedule else None
    losses: list[float] = []
    batches = 0
    try:
        with (
            Engine(model, optimizer, recipe=recipe, scheduler=scheduler, seed=seed) as engine,
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
    """Return a checksum of the tensors of a batch and of the batches before; 0 without a tensor."""
    for leaf in tree_leaves(batch):
        is_plain = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
        if is_plain and not leaf.is_complex():
            values = leaf.detach().cpu().flatten().view(torch.uint8)
            before = zlib.crc32(values.numpy(), before)
    return before
