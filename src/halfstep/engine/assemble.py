"""How an engine is put together: what is refused, in which order models are changed and wrapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from halfstep.engine.average import EMA, SWA, WeightAverage, checked_rule
from halfstep.engine.closure import refuse_recipe
from halfstep.engine.compatibility import refuse_misfits, refuse_unfit, refuse_unresolved
from halfstep.engine.guard import ParameterGuard
from halfstep.engine.hooks import Hooks
from halfstep.engine.outcome import Settlement, refuse_schedulers
from halfstep.engine.parallel.ddp import Replicas
from halfstep.engine.parallel.dp import refuse_threads
from halfstep.engine.parallel.fsdp import left_to_do, refuse_other_recipe, sharded_as
from halfstep.engine.parallel.ranks import Ranks
from halfstep.engine.parallel.wrappers import refuse_wrapped, refuse_zero
from halfstep.engine.scales import LossScales
from halfstep.engine.selection import parameter_names
from halfstep.engine.statistics import RunningStatistics
from halfstep.engine.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from halfstep.engine.clipping import Clipping
    from halfstep.engine.parallel.placement import Parallel
    from halfstep.recipe import Recipe
    from halfstep.recipe.resolution import Resolution
    from halfstep.techniques import Technique


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine's parts, which take part in a step under its recipe.

    Attributes:
        models: As they are to be called, wrapped.
        bare_models: As they are to be saved.
        device: Of the first model.
        resolution: What that device does under the recipe.
        guard: Keeps the models to this engine.
        windows: One for each optimizer of the engine.
        techniques: What the recipe is carried out by.
        hooks: What they do at each point of a step.
        scales: Its loss scales.
        clipping: How gradients are clipped.
        statistics: The models' running statistics, where a step may be skipped.
        moving: Those of models that have any.
        settlement: Where what follows from a step is left.
        replicas: The models that every process holds whole.
        ranks: The processes that train together.
        full_precision: Gives the most precise value of a parameter.
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
    statistics: Sequence[RunningStatistics]
    moving: Sequence[RunningStatistics]
    settlement: Settlement
    replicas: Replicas
    ranks: Ranks
    full_precision: Callable[[torch.Tensor], torch.Tensor]

    @property
    def averages(self) -> list[WeightAverage]:
        """The averages of the weights: one for each optimizer, or none."""
        return [window.average for window in self.windows if window.average]

    @property
    def evaluates_inside(self) -> bool:
        """Whether an optimizer evaluates the loss inside its step."""
        return any(window.needs_closure for window in self.windows)

    def refresh(self) -> None:
        """Take in parameters that were added to an optimizer, or replaced in it."""
        for window in self.windows:
            window.refresh()

    def zero_grad(self, windows: Sequence[Window]) -> None:
        """Drop the gradients of windows, and the statistics that were kept for their end."""
        self.replicas.forget(windows)
        for window in windows:
            window.zero_grad()
            for statistics in self.moving:
                if statistics.belong_to(window.params):
                    statistics.forget()

    def unmake_statistics(self) -> None:
        """Put back the running statistics of a forward pass whose step is not to be made."""
        for statistics in self.moving:
            statistics.settle(torch.ones(()))

    def close(self) -> None:
        """Give back every setting, hook and format."""
        statistics = [each.close for each in self.statistics]
        _undo(self.techniques, self.windows, self.replicas, self.guard, first=statistics)


def _undo(
    techniques: Sequence[Technique],
    windows: Sequence[Window],
    replicas: Replicas,
    guard: ParameterGuard,
    first: Sequence[Callable[[], None]] = (),
) -> None:
    """Give everything back, whatever a part of it raises; the first error is raised at the end."""
    closes = [*first, guard.close, *(window.close for window in windows), replicas.close]
    closes += [technique.close for technique in reversed(techniques)]
    errors = []
    # An engine may be dropped inside inference mode; what it restores is to be trained again.
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
) -> Assembly:
    """Check what belongs together, carry out the recipe on models and optimizers, and wrap them.

    Raises:
        ValueError, TypeError: As `Engine` says; models and optimizers are then as before.
    """
    techniques = recipe.techniques(seed=seed)
    sharded = any(sharded_as(model) for model in models)
    if sharded:
        techniques = left_to_do(techniques)
    guard = ParameterGuard(models, techniques)
    guard.refuse_taken()
    rule = checked_rule(average)
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

    for window in windows:
        window.average = WeightAverage(rule, window.params, full_precision) if rule else None
    scales = LossScales(recipe.scaling, device)
    pairs = zip(models, wrapped, strict=True) if scales else ()
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
        statistics=statistics,
        moving=[each for each in statistics if each.move],
        settlement=Settlement(
            schedulers, parameter_names(models), overflows_early=recipe.overflows_early
        ),
        replicas=replicas,
        ranks=ranks,
        full_precision=full_precision,
    )


def _prepare(
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    techniques: Sequence[Technique],
    windows: list[Window],
) -> None:
    """Carry out the recipe; `windows` are filled in, so that an error leaves those made so far."""
    for optimizer in optimizers:
        windows.append(Window(optimizer, techniques))  # noqa: PERF401  (an error leaves those before)
    for technique in techniques:
        technique.prepare(models, optimizers)
    follows = any(technique.casts_params for technique in techniques)
    for window in windows:
        window.refresh()
        if follows:
            window.recast_optimizer()
