"""Runs one whole training step under a recipe, and compares it with the recorded fp32 step.

The unit of damage is the variance of the gradient between batches: rounding with a squared error of
a hundredth of this variance costs as much as a batch that is one percent smaller.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from halfstep.advise.choose.record import floating, is_finite, replayed
from halfstep.advise.choose.sites import CallKey, Listener, Site
from halfstep.advise.random_numbers import drawn_from
from halfstep.engine import SWA, Engine
from halfstep.errors import reason
from halfstep.mechanisms.loss_scale.scaler import LossScaleCollapse
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from halfstep.advise.choose.record import Record
    from halfstep.advise.subject import Subject
    from halfstep.recipe import Recipe


MEMORY = 30
"""Steps over which errors of updates accumulate: errors of random sign average out, and errors that
every step repeats add up."""
LIMIT = 0.1
"""Maximum damage of the gradient: it costs as much as a batch that is ten percent smaller."""
MOST_LOST = 0.5
"""Maximum share of a parameter's update that may be lost to rounding."""
TRAINING = 100
"""Steps over which `drift.py` follows errors that every step repeats."""
DOUBTFUL = 1e-6
"""Squared error of the last step's gradient, divided by the smaller of its squared norm and its
variance between batches, above which the error in a step with a larger gradient may matter.
Rounding to fp16 is often below."""
CLOSE = LIMIT / 4
"""Mean damage of two steps above which the mean of all eight may exceed `LIMIT`: if rounding
depends on the values, the damage of single steps differs by a factor of ten and more."""
EXACT = 1e-6
"""Maximum share of an update that rounding changes if parameters, or their copies, are fp32."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The result of a whole step under a recipe.

    Attributes:
        gradient_damage: Squared error of the gradient divided by its variance between batches, for
            the last recorded step, or as a mean over the recorded steps (`over_two_steps`,
            `over_each_step`).
        updates_lost: Share of each parameter's update that is lost, by name: 1 minus the projection
            of the update on the fp32 update from the same gradient, relative to the fp32 update;
            infinite if the update is not finite.
        birth: The first site that raised, or returned inf or NaN for finite inputs; None if there
            is none.
        nonfinite: Names of the parameters whose gradient was inf or NaN.
        raised: The error that ended the step; "" if there was none.
        update_noise: Squared error of the update divided by the variance of updates between
            batches.
        drift: The part of `update_noise` that every step repeats; 0 if rounding errors average
            out, or no update is rounded.
    """

    gradient_damage: float
    updates_lost: Mapping[str, float]
    birth: Site | None
    nonfinite: tuple[str, ...]
    raised: str = ""
    update_noise: float = 0.0
    drift: float = 0.0

    @property
    def damage(self) -> float:
        """The total damage, in units of the variance between batches; infinite if the step fails.

        The error of the gradient counts fully, because it acts as additional noise between batches.
        Rounding errors of updates average out over `MEMORY` steps if their sign is random, and add
        up if every step repeats them.
        """
        if self.breaks or self.broken_updates:
            return math.inf
        return self.gradient_damage + self.update_noise / MEMORY + MEMORY * self.drift

    @property
    def breaks(self) -> bool:
        """Whether the step raised an error, or its gradients have inf or NaN."""
        return bool(self.raised or self.nonfinite)

    @property
    def broken_updates(self) -> list[str]:
        """The names of the parameters whose update is inf or NaN."""
        return [name for name, lost in self.updates_lost.items() if math.isinf(lost)]

    @property
    def rounds_updates(self) -> bool:
        """Whether rounding changes the update of some parameter."""
        return max(map(abs, self.updates_lost.values()), default=0.0) >= EXACT

    def stalled(self, most_lost: float) -> list[str]:
        """Return the names of the parameters that lose more than a share of their update."""
        return [name for name, lost in self.updates_lost.items() if lost > most_lost]

    def wrong(self, recipe: Recipe) -> str:
        """Return the problem of the step that would break a training; "" if there is none."""
        if self.raised:
            return self.raised
        if self.breaks:
            where = f", first in {self.birth.pattern}" if self.birth else ""
            return f"gradients are inf or NaN{where}"
        if self.gradient_damage > LIMIT:
            return (
                f"the gradient's squared error is {self.gradient_damage:.2g} times its variance "
                "between batches"
            )
        return self._wrong_updates(recipe)

    def _wrong_updates(self, recipe: Recipe) -> str:
        if broken := self.broken_updates:
            parameters = counted(len(broken), "parameter")
            return f"the update is inf or NaN in {parameters}, such as {broken[0]}"
        stalled = [] if recipe.keeps_small_updates else self.stalled(MOST_LOST)
        if stalled:
            return (
                f"the update is rounded away in {counted(len(stalled), 'parameter')}, such as "
                f"{stalled[0]}"
            )
        drift = TRAINING * self.drift
        if drift == math.inf:
            return f"weights become inf or NaN within {TRAINING} steps"
        if drift > LIMIT:
            return (
                f"rounding errors of the updates add up: after {TRAINING} steps, the squared error "
                f"of the weights is {drift:.2g} times their variance between batches"
            )
        return ""


def rehearse(subject: Subject, recorded: Record, recipe: Recipe, *, seed: int = 0) -> Rehearsal:
    """Run the last recorded step under a recipe, from the same weights and optimizer state.

    Args:
        subject: The subject; it is not modified.
        recorded: The recorded steps in fp32.
        recipe: The recipe; the step uses its initial loss scale.
        seed: The seed of the recipe's random numbers.
    """
    model = subject.copied()
    model.load_state_dict(recorded.weights)
    optimizer = subject.optimizer(model)
    # Copied, because an optimizer keeps the loaded tensors and overwrites them.
    optimizer.load_state_dict(copy.deepcopy(dict(recorded.optimizer_state)))
    names = [name for name, _ in model.named_parameters()]
    owned = _owned(optimizer, model)
    births = _Births()
    gradients: dict[str, torch.Tensor] = {}

    def look(*_: Any) -> None:
        for name, param in zip(owned, params, strict=True):
            if param.grad is not None:
                gradients[name] = param.grad.detach().float().clone()

    try:
        # SWA gives the weights in the full precision that the recipe keeps: the average over one
        # step is the weights of this step.
        engine = Engine(
            model, optimizer, recipe=recipe, average=SWA(), seed=seed, nonfinite="apply"
        )
        # Listed now, because a step in chunks hides some parameters from the optimizer.
        params = [param for group in optimizer.param_groups for param in group["params"]]
        with engine, drawn_from(recorded.random_state):
            before = _weights(engine.averaged_state_dict(), names)
            with engine.autocast(), Listener(model, births.look):
                loss = subject.loss(engine.model, recorded.batch)
            engine.backward(loss)
            optimizer.register_step_pre_hook(look)
            stepped = engine.step().stepped
            after = _weights(engine.averaged_state_dict(), names)
    except (RuntimeError, TypeError, ValueError, LossScaleCollapse) as error:
        return Rehearsal(math.inf, {}, births.first, (), reason(error))
    wrong = tuple(name for name, grad in gradients.items() if not is_finite(grad))
    if not stepped and not wrong:
        wrong = ("every parameter",)
    wanted = _update_in_fp32(subject, recorded, gradients)
    got = {name: after[name] - before[name] for name in names}
    lost = {name: _lost(got[name], wanted[name]) for name in names}
    return Rehearsal(
        _damage(gradients, recorded),
        lost,
        births.first,
        wrong,
        update_noise=_update_error(got, wanted, recorded.noise_ratio),
    )


def is_doubtful(found: Rehearsal, recorded: Record) -> bool:
    """Tell whether the damage of a recorded step other than the last may exceed the limit."""
    relative = found.gradient_damage * max(1.0, recorded.noise_ratio) ** 2
    return relative > DOUBTFUL and recorded.steepest.gradient is not recorded.gradient


def over_two_steps(
    found: Rehearsal, subject: Subject, recorded: Record, recipe: Recipe, *, seed: int = 0
) -> Rehearsal:
    """Return the rehearsal of the last step with an estimate of the mean damage over all steps.

    Rounding that depends on the values, such as that of saved activations, does most damage where
    errors are amplified most, so a few steps with a large gradient dominate the mean. Therefore the
    step with the largest gradient is rehearsed too, and counts once; the last step counts for all
    other steps. If the rehearsal of the step with the largest gradient breaks, it is returned
    unchanged.

    Args:
        found: The rehearsal of the last step.
        subject: The subject; it is not modified.
        recorded: The recorded steps in fp32.
        recipe: The recipe of `found`.
        seed: The seed of the recipe's random numbers.
    """
    steepest = rehearse(subject, recorded.at(recorded.steepest), recipe, seed=seed)
    if steepest.breaks:
        return steepest
    others = recorded.steps - 1
    mean = (others * found.gradient_damage + steepest.gradient_damage) / recorded.steps
    return replace(found, gradient_damage=mean)


def over_each_step(
    found: Rehearsal, subject: Subject, recorded: Record, recipe: Recipe, *, seed: int = 0
) -> Rehearsal:
    """Return the rehearsal of the last step with the mean damage over all recorded steps.

    If the rehearsal of an earlier step breaks, it is returned unchanged.

    Args:
        found: The rehearsal of the last step.
        subject: The subject; it is not modified.
        recorded: The recorded steps in fp32; all except the last are trained again.
        recipe: The recipe of `found`.
        seed: The seed of the recipe's random numbers.
    """
    damages = [found.gradient_damage]
    for moment in replayed(subject, recorded):
        if moment.steepness == 0:
            damages.append(0.0)  # zero is exact in every format
            continue
        there = rehearse(subject, recorded.at(moment), recipe, seed=seed)
        if there.breaks:
            return there
        damages.append(there.gradient_damage)
    return replace(found, gradient_damage=sum(damages) / len(damages))


def _weights(state: Mapping[str, torch.Tensor], names: Sequence[str]) -> dict[str, torch.Tensor]:
    return {name: state[name].detach().float().clone() for name in names}


class _Births:
    """Finds the first operator that raises, or returns inf or NaN for finite inputs."""

    def __init__(self) -> None:
        self.first: Site | None = None

    def look(
        self,
        key: CallKey,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run an operator, and check its results."""
        clean = self.first is None and all(map(is_finite, floating((args, kwargs))))
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError):
            self.first = self.first or key.site
            raise
        if clean and not all(map(is_finite, floating(result))):
            self.first = key.site
        return result


def _update_in_fp32(
    subject: Subject, recorded: Record, gradients: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the optimizer's update for given gradients, with parameters and state in fp32."""
    model = subject.copied()
    model.load_state_dict(recorded.weights)
    optimizer = subject.optimizer(model)
    optimizer.load_state_dict(copy.deepcopy(dict(recorded.optimizer_state)))
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    with Engine(model, optimizer, recipe="fp32", nonfinite="apply") as engine:
        step_on(engine, model, gradients)
    return {name: param.detach() - before[name] for name, param in model.named_parameters()}


def step_on(engine: Engine, model: nn.Module, gradients: Mapping[str, torch.Tensor]) -> None:
    """Take a step with given gradients, by parameter name; take none if there are no gradients."""
    # A loss whose gradients are the given ones.
    parts = [
        (param.float() * gradients[name]).sum()
        for name, param in model.named_parameters()
        if name in gradients
    ]
    if parts:
        engine.backward(torch.stack(parts).sum())
        engine.step()


def _owned(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    names = {param: name for name, param in model.named_parameters()}
    return [names[param] for group in optimizer.param_groups for param in group["params"]]


def _damage(gradients: Mapping[str, torch.Tensor], recorded: Record) -> float:
    noise = recorded.noise_ratio**2 * sum(
        float(exact.double().square().sum()) for exact in recorded.gradient.values()
    )
    lost = sum(
        float((gradients.get(name, torch.zeros_like(exact)).double() - exact).square().sum())
        for name, exact in recorded.gradient.items()
    )
    return lost / noise if noise > 0 else math.inf


def _update_error(
    got: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], noise_ratio: float
) -> float:
    """Return the squared error of an update divided by the variance of updates between batches."""
    energy = sum(float(each.double().square().sum()) for each in wanted.values())
    if energy == 0:
        return 0.0
    error = sum(float((got[name] - wanted[name]).double().square().sum()) for name in wanted)
    return error / energy / noise_ratio**2


def _lost(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the share of an update that is missing along its direction, where noise cancels."""
    if not is_finite(got):
        return math.inf
    energy = float(wanted.double().square().sum())
    return 1 - float((got.double() * wanted).sum()) / energy if energy > 0 else 0.0
