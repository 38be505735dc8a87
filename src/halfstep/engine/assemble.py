"""How an engine is put together: what is refused, in which order models are changed and wrapped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from halfstep.engine.average import EMA, SWA, WeightAverage, checked_rule
from halfstep.engine.guard import ParameterGuard, release_all
from halfstep.engine.misuse import (
    refuse_misfits,
    refuse_parallel,
    refuse_threads,
    refuse_unfit,
    refuse_unresolved,
    refuse_wrapped,
    refuse_zero,
)
from halfstep.engine.parallel.ddp import Replicas, synchronize_batchnorm
from halfstep.engine.parallel.dp import on_all_gpus
from halfstep.engine.parallel.fsdp import left_to_do, refuse_other_recipe, sharded_as
from halfstep.engine.parallel.ranks import Ranks
from halfstep.engine.scales import LossScales
from halfstep.engine.selection import parameter_names
from halfstep.engine.settle import Settlement
from halfstep.engine.slot import Slot
from halfstep.engine.state import load_optimizer
from halfstep.engine.statistics import RunningStatistics
from halfstep.engine.update import Update

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from halfstep.engine.gradients import Clipping
    from halfstep.recipe import Recipe
    from halfstep.recipe.resolution import Resolution
    from halfstep.techniques import Technique


@dataclass(frozen=True, slots=True)
class Parallel:
    """How the models are put on several devices, as `Engine` was given it.

    Attributes:
        how: "ddp", "dp", or None for models that are wrapped, sharded or alone.
        ddp: Arguments of `DistributedDataParallel`.
        dp: Arguments of `DataParallel`.
        sync_batchnorm: Whether BatchNorm sees the batches of all processes.
    """

    how: str | None
    ddp: Mapping[str, Any] = field(default_factory=dict)
    dp: Mapping[str, Any] = field(default_factory=dict)
    sync_batchnorm: bool = False


@dataclass(frozen=True, slots=True)
class Assembled:
    """An engine's parts.

    Attributes:
        models: As they are to be called, wrapped.
        bare_models: As they are to be saved.
        device: Of the first model.
        resolution: What that device does under the recipe.
        update: Everything that takes part in a step.
        guard: Holds the models.
    """

    models: list[nn.Module]
    bare_models: list[nn.Module]
    device: torch.device
    resolution: Resolution
    update: Update
    guard: ParameterGuard

    def close(self) -> None:
        """Give back every setting, hook and format."""
        parts = self.update
        for statistics, _ in parts.statistics:
            statistics.close()
        _undo(parts.techniques, parts.slots, parts.replicas, self.guard)


def _undo(
    techniques: Sequence[Technique],
    slots: Sequence[Slot],
    replicas: Replicas,
    guard: ParameterGuard,
) -> None:
    release_all([guard, *(slot.guard for slot in slots)])
    replicas.close()
    # An engine may be dropped inside inference mode; what it restores is to be trained again.
    with torch.inference_mode(mode=False):
        for technique in reversed(techniques):
            technique.close()


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
) -> Assembled:
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
    settlement = Settlement(schedulers, overflows_early=recipe.overflows_early)
    refuse_misfits(models, optimizers, schedulers, recipe)
    refuse_unfit(models, recipe, averaged=rule is not None)
    device = next(param.device for each in models for param in each.parameters())
    resolution = recipe.resolve(device)
    refuse_unresolved(resolution)
    refuse_other_recipe(models, recipe)
    refuse_parallel(parallel, models, recipe)
    refuse_threads(models, recipe)
    refuse_zero(optimizers, recipe)
    if any(technique.reshapes_params for technique in techniques):
        refuse_wrapped(models, recipe.name)
    if parallel.sync_batchnorm:
        group = parallel.ddp.get("process_group")
        models = [synchronize_batchnorm(model, group) for model in models]
    slots: list[Slot] = []
    ranks = Ranks()
    replicas = Replicas(recipe, slots, ranks)
    try:
        guard.hold()
        _prepare(models, optimizers, techniques, slots)
        ranks.join_those_of(models, optimizers)
        replicas.watch(models)
        wrapped = models
        if parallel.how == "ddp":
            wrapped = [replicas.wrap(model, parallel.ddp) for model in models]
        elif parallel.how == "dp":
            wrapped = [on_all_gpus(model, parallel.dp) for model in models]
    except BaseException:
        _undo(techniques, slots, replicas, guard)
        raise

    def full_precision(param: torch.Tensor) -> torch.Tensor:
        for technique in techniques:
            param = technique.full_precision(param)
        return param

    scales = LossScales(recipe.scaling, device)
    return Assembled(
        wrapped,
        models,
        device,
        resolution,
        Update(
            slots=slots,
            techniques=techniques,
            scales=scales,
            clipping=clipping,
            statistics=[
                (
                    RunningStatistics(each, called if parallel.how == "dp" else None),
                    frozenset(each.parameters()),
                )
                for each, called in zip(models, wrapped, strict=True)
                if scales
            ],
            averages=[WeightAverage(rule, s.params, full_precision) for s in slots if rule],
            settlement=settlement,
            replicas=replicas,
            ranks=ranks,
            names=parameter_names(models),
            full_precision=full_precision,
        ),
        guard,
    )


def _prepare(
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    techniques: Sequence[Technique],
    slots: list[Slot],
) -> None:
    for optimizer in optimizers:
        slots.append(Slot(optimizer, techniques))  # noqa: PERF401  (an error leaves those before)
    for technique in techniques:
        technique.prepare(models, optimizers)
    follows = any(technique.casts_params for technique in techniques)
    for optimizer in optimizers if follows else ():
        if optimizer.state:
            load_optimizer(optimizer, techniques, optimizer.state_dict())
