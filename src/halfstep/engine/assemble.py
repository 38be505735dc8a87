"""Builds the parts of an engine: checks its arguments, applies the recipe and wraps the models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from halfstep.engine.average import EMA, SWA, WeightAverage, checked_rule
from halfstep.engine.closing.nonfinite import checked_policy
from halfstep.engine.closing.outcome import Settlement, refuse_schedulers
from halfstep.engine.closing.statistics import RunningStatistics
from halfstep.engine.closure import refuse_recipe
from halfstep.engine.compatibility import refuse_misfits, refuse_unfit, refuse_unresolved
from halfstep.engine.guard import ParameterGuard
from halfstep.engine.hooks import Hooks
from halfstep.engine.misuse import warn_zero_eps
from halfstep.engine.parallel.ddp import Replicas
from halfstep.engine.parallel.dp import refuse_threads
from halfstep.engine.parallel.fsdp import left_to_do, refuse_other_recipe, sharded_as
from halfstep.engine.parallel.wrappers import refuse_wrapped, refuse_zero
from halfstep.engine.processes.ranks import Ranks
from halfstep.engine.scales import LossScales
from halfstep.engine.selection import parameter_names
from halfstep.engine.window.window import Window
from halfstep.optim.eps import zero_eps_of
from halfstep.recipe.resolution import LayerSupport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from halfstep.engine.closing.clipping import Clipping
    from halfstep.engine.closing.nonfinite import Policy
    from halfstep.engine.parallel.placement import Parallel
    from halfstep.mechanisms.technique import Technique
    from halfstep.recipe import Recipe
    from halfstep.recipe.resolution import Resolution


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of an engine.

    Attributes:
        models: The models to call, each in its wrapper, if any.
        bare_models: The models without wrappers, to save.
        device: Device of the first model.
        resolution: How this device runs the recipe.
        guard: Reserves the models for this engine.
        windows: One window for each optimizer of the engine.
        techniques: The techniques that implement the recipe.
        hooks: The methods of the techniques at each point of a step.
        scales: The loss scales.
        clipping: The limit of clipping.
        nonfinite: What the engine does with non-finite gradients.
        statistics: The running statistics of each model; empty if every step is applied.
        moving: The entries of `statistics` whose model has running statistics.
        settlement: Does the work that follows a step, in a later step.
        replicas: The `DistributedDataParallel` wrappers of the models.
        ranks: The processes that train together.
        full_precision: Returns the most precise value of a parameter.
        one: The fp32 scalar 1 on `device`, which no step changes.
    """

    models: list[nn.Module]
    bare_models: list[nn.Module]
    device: torch.device
    resolution: Resolution
    guard: ParameterGuard
    windows: list[Window]
    techniques: Sequence[Technique]
    hooks: Hooks
    scales: LossScales
    clipping: Clipping
    nonfinite: Policy
    statistics: Sequence[RunningStatistics]
    moving: Sequence[RunningStatistics]
    settlement: Settlement
    replicas: Replicas
    ranks: Ranks
    full_precision: Callable[[torch.Tensor], torch.Tensor]
    one: torch.Tensor

    @property
    def averages(self) -> list[WeightAverage]:
        """The averages of the weights: one for each optimizer, or none."""
        return [window.average for window in self.windows if window.average]

    @property
    def checks(self) -> bool:
        """Whether gradients are checked for inf and NaN, although no loss scale requires it."""
        return self.nonfinite != "apply" and not self.scales

    @property
    def explains(self) -> bool:
        """Whether a skip in the next step makes a message with the names of parameters."""
        ahead = self.settlement.unsettled
        return self.scales.may_collapse(ahead=ahead) or self.settlement.in_a_row.may_warn(
            ahead=ahead
        )

    @property
    def evaluates_inside(self) -> bool:
        """Whether an optimizer evaluates the loss inside its step."""
        return any(window.needs_closure for window in self.windows)

    def refresh(self) -> None:
        """Update all windows for parameters that were added to an optimizer or replaced in it."""
        for window in self.windows:
            window.refresh()

    def zero_grad(self, windows: Sequence[Window]) -> None:
        """Drop the gradients of windows, and the copies of running statistics made for them."""
        self.replicas.forget(windows)
        for window in windows:
            window.zero_grad()
            for statistics in self.moving:
                if statistics.belong_to(window.params):
                    statistics.forget()

    def unmake_statistics(self) -> None:
        """Restore the running statistics from before the window, because its step is cancelled."""
        for statistics in self.moving:
            statistics.settle(torch.ones(()))

    def close(self) -> None:
        """Undo every change of settings, hooks and formats."""
        statistics = [each.close for each in self.statistics]
        _undo(self.techniques, self.windows, self.replicas, self.guard, first=statistics)


def _undo(
    techniques: Sequence[Technique],
    windows: Sequence[Window],
    replicas: Replicas,
    guard: ParameterGuard,
    first: Sequence[Callable[[], None]] = (),
) -> None:
    """Undo all changes, even if one of them fails; raise the first error at the end."""
    closes = [*first, guard.close, *(window.close for window in windows), replicas.close]
    closes += [technique.close for technique in reversed(techniques)]
    errors = []
    # An engine may be garbage-collected inside inference mode. Tensors that were restored in that
    # mode could not be trained.
    with torch.inference_mode(mode=False):
        for close in closes:
            try:
                close()
            except Exception as error:  # noqa: BLE001  (raised below)
                errors.append(error)
    if errors:
        raise errors[0]


def assemble(
    models: list[nn.Module],
    optimizers: list[Optimizer],
    recipe: Recipe,
    *,
    clipping: Clipping,
    schedulers: Sequence[LRScheduler],
    average: EMA | SWA | None,
    seed: int,
    parallel: Parallel,
    nonfinite: str,
) -> Assembly:
    """Check the arguments, apply the recipe to models and optimizers, and wrap the models.

    Raises:
        ValueError, TypeError: As described in `Engine`; the recipe's changes are then undone.
    """
    techniques = recipe.techniques(seed=seed)
    sharded = any(sharded_as(model) for model in models)
    if sharded:
        techniques = left_to_do(techniques)
    guard = ParameterGuard(models, techniques)
    guard.refuse_taken()
    rule, policy = checked_rule(average), checked_policy(nonfinite)
    refuse_misfits(models, optimizers)
    refuse_schedulers(schedulers, optimizers)
    refuse_recipe(optimizers, recipe)
    refuse_unfit(models, recipe, averaged=rule is not None)
    device = next(param.device for each in models for param in each.parameters())
    resolution = recipe.resolve(device)
    refuse_unresolved(resolution)
    refuse_other_recipe(models, recipe)
    parallel.refuse(models, recipe)
    refuse_threads(models, recipe)
    reshapes = any(technique.reshapes_params for technique in techniques)
    refuse_zero(optimizers, recipe, reshapes=reshapes)
    if reshapes:
        refuse_wrapped(models, recipe.name)
    models = parallel.synchronized(models)
    windows: list[Window] = []
    ranks = Ranks()
    replicas = Replicas(recipe, windows, ranks)
    try:
        guard.hold()
        _prepare(models, optimizers, techniques, windows)
        for optimizer in optimizers:
            if lost := zero_eps_of(optimizer):
                warn_zero_eps(type(optimizer).__name__, lost, recipe)
        ranks.join_those_of(models, optimizers)
        replicas.watch(models)
        wrapped = parallel.wrap(models, replicas)
    except BaseException:
        _undo(techniques, windows, replicas, guard)
        raise

    def full_precision(param: torch.Tensor) -> torch.Tensor:
        for technique in techniques:
            param = technique.full_precision(param)
        return param

    resolution = replace(resolution, layers=_layers(models, techniques, recipe))
    for window in windows:
        window.average = WeightAverage(rule, window.params, full_precision) if rule else None
    scales = LossScales(recipe.scaling, device)
    may_skip = scales or policy != "apply"
    pairs = zip(models, wrapped, strict=True) if may_skip else ()
    statistics = [
        RunningStatistics(model, called if parallel.in_threads else None) for model, called in pairs
    ]
    return Assembly(
        models=wrapped,
        bare_models=models,
        device=device,
        resolution=resolution,
        guard=guard,
        windows=windows,
        techniques=techniques,
        hooks=Hooks.of(techniques),
        scales=scales,
        clipping=clipping,
        nonfinite=policy,
        statistics=statistics,
        moving=[each for each in statistics if each.move],
        settlement=Settlement(
            schedulers,
            parameter_names(models),
            overflows_early=recipe.overflows_early,
            scales=bool(scales),
        ),
        replicas=replicas,
        ranks=ranks,
        full_precision=full_precision,
        one=torch.ones((), device=device),
    )


def _layers(
    models: Sequence[nn.Module], techniques: Sequence[Technique], recipe: Recipe
) -> tuple[LayerSupport, ...]:
    """Return the formats of the layers that the techniques have prepared."""
    names = {module: name for model in models for name, module in model.named_modules()}
    formats = [each for technique in techniques for each in technique.layer_formats().items()]
    return tuple(
        LayerSupport(names[layer], how, format_ or recipe.format_of_left_out, reason)
        for layer, (how, format_, reason) in formats
    )


def _prepare(
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    techniques: Sequence[Technique],
    windows: list[Window],
) -> None:
    """Apply the recipe to models and optimizers, and append a window for each to `windows`.

    After an error, `windows` holds the windows made so far, so that the caller can close them.
    """
    for optimizer in optimizers:
        windows.append(Window(optimizer, techniques))  # noqa: PERF401  (an error leaves those before)
    for technique in techniques:
        technique.prepare(models, optimizers)
    follows = any(technique.casts_params for technique in techniques)
    for window in windows:
        window.refresh()
        if follows:
            window.recast_optimizer()
