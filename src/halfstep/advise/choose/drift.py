"""Measures how far rounded updates move the weights away from fp32 over many steps.

One step does not distinguish rounding errors of random sign, which average out, from errors that
every step repeats: with rounding to nearest, an update of less than half an ulp is lost each time.
So the optimizer alone takes more steps, under the recipe and in fp32, with the same gradients. The
gradients are drawn at random with the mean and the spread of the recorded ones; the model does not
run.
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
    """Return a rehearsal with its drift, if the recipe rounds updates to nearest.

    With stochastic rounding and with compensated updates, no update is lost in the long run, even
    if one step loses it. So their drift stays 0.
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
    """Take steps of the optimizer under a recipe and in fp32, and compare the movement of weights.

    Args:
        subject: The subject; it is not modified.
        recorded: The recorded steps in fp32, with the weights and optimizer state to start from.
        recipe: A recipe without fp32 copies of the parameters.
        seed: The seed of the gradients and of the recipe's random numbers.
        before: Called before each step, with its number from 0 and the number of steps.

    Returns:
        The squared error that each of `TRAINING` steps repeats, divided by the variance of updates
        between batches; infinite if weights become inf or NaN.
    """
    chance = torch.Generator().manual_seed(seed)
    rounded, exact = _Optimization(subject, recorded), _Optimization(subject, recorded)
    with (
        Engine(
            rounded.model, rounded.optimizer, recipe=recipe, seed=seed, nonfinite="apply"
        ) as half,
        Engine(exact.model, exact.optimizer, recipe="fp32", nonfinite="apply") as full,
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
    # The relative squared error of errors that are independent between steps falls to 1 / TRAINING.
    lasting = (all_of_them - once / TRAINING) / (1 - 1 / TRAINING)
    return max(0.0, lasting) / recorded.noise_ratio**2


class _Optimization:
    """A copy of the model before the last recorded step, and its optimizer."""

    def __init__(self, subject: Subject, recorded: Record) -> None:
        self.model: nn.Module = subject.copied()
        self.model.load_state_dict(recorded.weights)
        self.optimizer = subject.optimizer(self.model)
        self.optimizer.load_state_dict(copy.deepcopy(dict(recorded.optimizer_state)))
        self._start: dict[str, torch.Tensor] = {}

    def begin(self) -> None:
        """Store the weights, in the precision of their current formats, as the starting point."""
        self._start = self._weights()

    def moved(self) -> dict[str, torch.Tensor]:
        """Return the movement of each parameter from the starting point, in fp32."""
        return {name: value - self._start[name] for name, value in self._weights().items()}

    def _weights(self) -> dict[str, torch.Tensor]:
        return {
            name: param.detach().float().clone() for name, param in self.model.named_parameters()
        }


def _normal(like: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    return torch.randn(like.shape, generator=chance).to(like.device)


def _error(got: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    """Return the squared error of a movement, divided by the squared norm of the wanted one."""
    energy = sum(float(each.double().square().sum()) for each in wanted.values())
    if energy == 0 or not math.isfinite(energy):  # no movement to compare with
        return 0.0
    error = sum(float((got[name] - each).double().square().sum()) for name, each in wanted.items())
    return error / energy if math.isfinite(error) else math.inf
