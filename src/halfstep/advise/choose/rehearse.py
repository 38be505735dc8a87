"""One step of training under a recipe, as a whole, held against the recorded fp32 step.

Damage is counted in units of the noise that gradients have from batch to batch: a rounding whose
squared error is a hundredth of that variance costs as much as a batch one per cent smaller.
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
from halfstep.plurals import counted
from halfstep.techniques import LossScaleCollapse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from halfstep.advise.choose.record import Record
    from halfstep.advise.subject import Subject
    from halfstep.recipe import Recipe


MEMORY = 30
"""Steps that a training remembers: over so many, errors of either sign average out and those that
every step makes again add up."""
LIMIT = 0.1
"""Most damage that is free, in units of the gradient's noise: a batch ten per cent smaller."""
MOST_LOST = 0.5
"""Share of a parameter's update that may be lost to rounding."""
TRAINING = 100
"""Steps of a short training, over which errors that every step makes again are followed."""
DOUBTFUL = 1e-6
"""Squared error of the last gradient, over the less of its squared norm and its variance between
batches, from which that of a steeper step may matter; rounding to fp16 often leaves less."""
CLOSE = LIMIT / 4
"""Mean damage of two steps from which that of all eight may exceed the limit: the damage of single
steps differs by a factor of ten and more where rounding depends on the values."""
EXACT = 1e-6
"""Share of an update that rounding changes at most where parameters, or their copies, are fp32."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a whole step under a recipe came to.

    Attributes:
        gradient_damage: Squared error of the gradient over its variance between batches; of the
            last recorded step, or the mean over the recorded steps (`over_two_steps`,
            `over_each_step`).
        updates_lost: Share of each parameter's update that did not arrive, by name: 1 less its
            projection on what the optimizer makes of the same gradient in fp32; infinite where the
            update is not finite.
        birth: The site that first raised, or made inf or NaN of finite inputs; None where none did.
        nonfinite: Parameters whose gradient was inf or NaN.
        raised: What was raised instead; "" where nothing was.
        update_noise: Squared error of the update, in units of the variance that updates have from
            batch to batch.
        drift: What of that every step makes again; 0 where rounding of either sign averages out,
            or no update is rounded.
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
        """What the recipe costs, in units of the noise between batches; infinite if it breaks.

        The error of a gradient counts as it is, as noise that is no other between batches does.
        What the rounding of updates leaves averages out over `MEMORY` steps where it has either
        sign, and adds up where every step makes it again.
        """
        if self.breaks or self.broken_updates:
            return math.inf
        return self.gradient_damage + self.update_noise / MEMORY + MEMORY * self.drift

    @property
    def breaks(self) -> bool:
        """Whether inf, NaN or an error came of it."""
        return bool(self.raised or self.nonfinite)

    @property
    def broken_updates(self) -> list[str]:
        """The parameters that are inf or NaN after the step."""
        return [name for name, lost in self.updates_lost.items() if math.isinf(lost)]

    @property
    def rounds_updates(self) -> bool:
        """Whether some parameter is not where the update in fp32 takes it."""
        return max(map(abs, self.updates_lost.values()), default=0.0) >= EXACT

    def stalled(self, most_lost: float) -> list[str]:
        """Return the parameters that lose more than a share of their update."""
        return [name for name, lost in self.updates_lost.items() if lost > most_lost]

    def wrong(self, recipe: Recipe) -> str:
        """Say what goes wrong in the step that a training would not bear; "" where nothing does."""
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
        subject: What is trained.
        recorded: The step in fp32.
        recipe: What to run it under; its loss scale is that of a first step.
        seed: Of what the recipe draws at random.
    """
    model = subject.copied()
    model.load_state_dict(recorded.weights)
    optimizer = subject.optimizer(model)
    # A copy: optimizers load tensors as they are, and write over them.
    optimizer.load_state_dict(copy.deepcopy(dict(recorded.optimizer_state)))
    names = [name for name, _ in model.named_parameters()]
    owned = _owned(optimizer, model)
    births = _Births()
    gradients: dict[str, torch.Tensor] = {}

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        for name, param in zip(owned, params, strict=True):
            if param.grad is not None:
                gradients[name] = param.grad.detach().float().clone()

    try:
        # An average of one step's weights is these weights, as precise as the recipe keeps them.
        engine = Engine(model, optimizer, recipe=recipe, average=SWA(), seed=seed)
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

    Rounding that depends on the values, as of saved activations, does most harm where errors are
    amplified most: a few steep steps make most of the mean. So the step of the largest gradient is
    rehearsed as well and counts once; the last step counts for all others. A rehearsal of the
    steepest step that breaks is returned as it is.

    Args:
        found: The rehearsal of the last step.
        subject: What is trained.
        recorded: Its first steps in fp32.
        recipe: That of `found`.
        seed: Of what the recipe draws at random.
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
    """Return the rehearsal of the last step with the mean damage of every recorded step.

    A rehearsal that breaks is returned as it is.

    Args:
        found: The rehearsal of the last step.
        subject: What is trained.
        recorded: Its first steps in fp32; all but the last are trained again.
        recipe: That of `found`.
        seed: Of what the recipe draws at random.
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
    """Finds the first operator whose results are not finite though its inputs are."""

    def __init__(self) -> None:
        self.first: Site | None = None

    def look(
        self,
        key: CallKey,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run an operator, and look at what comes out."""
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
    """Return what the optimizer makes of gradients where parameters and state are fp32."""
    model = subject.copied()
    model.load_state_dict(recorded.weights)
    optimizer = subject.optimizer(model)
    optimizer.load_state_dict(copy.deepcopy(dict(recorded.optimizer_state)))
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    with Engine(model, optimizer, recipe="fp32") as engine:
        step_on(engine, model, gradients)
    return {name: param.detach() - before[name] for name, param in model.named_parameters()}


def step_on(engine: Engine, model: nn.Module, gradients: Mapping[str, torch.Tensor]) -> None:
    """Take a step on gradients that are given, by parameter; none of no gradients."""
    # The gradient of this loss is the one that is given.
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
    """Return the squared error of an update in units of its noise."""
    energy = sum(float(each.double().square().sum()) for each in wanted.values())
    if energy == 0:
        return 0.0
    error = sum(float((got[name] - wanted[name]).double().square().sum()) for name in wanted)
    return error / energy / noise_ratio**2


def _lost(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return how much of an update is missing along its own direction, where noise cancels."""
    if not is_finite(got):
        return math.inf
    energy = float(wanted.double().square().sum())
    return 1 - float((got.double() * wanted).sum()) / energy if energy > 0 else 0.0
