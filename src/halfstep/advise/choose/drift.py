"""Where the rounding of updates takes the weights over many steps, beside where fp32 takes them.

One step does not tell rounding errors of either sign, which average out, from those that every step
makes again: rounded to nearest, an update of less than half an ulp is lost each time. So the
optimizer alone takes more steps, under the recipe and in fp32, on the same gradients. These are
drawn with the mean and the spread that gradients had between batches; the model does not run.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from halfstep.advise.choose.rehearse import TRAINING, Rehearsal, step_on
from halfstep.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from halfstep.advise.choose.record import Record
    from halfstep.advise.subject import Subject
    from halfstep.recipe import Recipe


def followed(
    found: Rehearsal,
    subject: Subject,
    recorded: Record,
    recipe: Recipe,
    *,
    seed: int = 0,
    before: Callable[[int, int], None] = lambda *_: None,
) -> Rehearsal:
    """Return a rehearsal with its drift, where the recipe rounds updates to the nearest.

    Stochastic rounding and compensated updates arrive in the long run, whatever one step shows.
    """
    if found.breaks or recipe.keeps_small_updates or not found.rounds_updates:
        return found
    return replace(found, drift=drift(subject, recorded, recipe, seed=seed, before=before))


def drift(
    subject: Subject,
    recorded: Record,
    recipe: Recipe,
    *,
    seed: int = 0,
    before: Callable[[int, int], None] = lambda *_: None,
) -> float:
    """Take steps of the optimizer under a recipe and in fp32, and compare where the weights go.

    Args:
        subject: What is trained.
        recorded: Its first steps in fp32, and the weights and optimizer state to go on from.
        recipe: One whose parameters are the weights, without copies in fp32.
        seed: Of the gradients, and of what the recipe draws at random.
        before: Is called before each step, with its number from 0 and how many there are.

    Returns:
        The squared error that each of `TRAINING` steps makes again, as a share of the squared
        update, in units of the variance of that between batches; infinite where weights become inf
        or NaN.
    """
    chance = torch.Generator().manual_seed(seed)
    rounded, exact = _Optimization(subject, recorded), _Optimization(subject, recorded)
    with (
        Engine(rounded.model, rounded.optimizer, recipe=recipe, seed=seed) as half,
        Engine(exact.model, exact.optimizer, recipe="fp32") as full,
    ):
        rounded.begin()
        exact.begin()
        for step in range(TRAINING):
            before(step, TRAINING)
            gradients = {
                name: mean + recorded.spread[name] * _normal(mean, chance)
                for name, mean in recorded.mean.items()
            }
            step_on(half, rounded.model, gradients)
            step_on(full, exact.model, gradients)
            if step == 0:
                once = _error(rounded.moved(), exact.moved())
        all_of_them = _error(rounded.moved(), exact.moved())
    # Of errors that are independent from step to step, 1 / TRAINING is left.
    lasting = (all_of_them - once / TRAINING) / (1 - 1 / TRAINING)
    return max(0.0, lasting) / recorded.noise_ratio**2


class _Optimization:
    """A copy of the model as it was before the last recorded step, and its optimizer."""

    def __init__(self, subject: Subject, recorded: Record) -> None:
        self.model: nn.Module = subject.copied()
        self.model.load_state_dict(recorded.weights)
        self.optimizer = subject.optimizer(self.model)
        self.optimizer.load_state_dict(copy.deepcopy(dict(recorded.optimizer_state)))
        self._start: dict[str, torch.Tensor] = {}

    def begin(self) -> None:
        """Keep the weights in the formats that they have now."""
        self._start = self._weights()

    def moved(self) -> dict[str, torch.Tensor]:
        """Return how far each parameter is from where it began, fp32."""
        return {name: value - self._start[name] for name, value in self._weights().items()}

    def _weights(self) -> dict[str, torch.Tensor]:
        return {
            name: param.detach().float().clone() for name, param in self.model.named_parameters()
        }


def _normal(like: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    return torch.randn(like.shape, generator=chance).to(like.device)


def _error(got: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    """Return the squared distance over the squared norm of what the weights should move by."""
    energy = sum(float(each.double().square().sum()) for each in wanted.values())
    if energy == 0 or not math.isfinite(energy):  # nothing to be held against
        return 0.0
    error = sum(float((got[name] - each).double().square().sum()) for name, each in wanted.items())
    return error / energy if math.isfinite(error) else math.inf
