"""Builds the objects that a config names: data, model, optimizer, schedule and engine.

Training and evaluation both use this module, so that a config has the same meaning in both. All
errors in a config are found here, before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from halfstep.engine import EMA, Engine
from halfstep.engine.parallel.fsdp import sharded_as
from halfstep.errors import UserError
from halfstep.train import data, kept
from halfstep.train.build import compiling, in_parallel, loss, models, optim, schedules
from halfstep.train.build.classification import Classification
from halfstep.train.data.pipeline import batch_size
from halfstep.train.data.pipeline.order import BatchShare
from halfstep.train.data.pipeline.samples import LEAST
from halfstep.train.data.sources.seeding import derive
from halfstep.train.processes.processes import ALONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.train.build.schedules import Schedules
    from halfstep.train.config import Config
    from halfstep.train.config.run import RunConfig
    from halfstep.train.data import Data
    from halfstep.train.processes.processes import Processes
    from halfstep.train.task.task import Split, Task


@dataclass(frozen=True, slots=True)
class Setup:
    """The objects of a run.

    Attributes:
        engine: The engine, which owns the model and the optimizer.
        device: Device of the model.
        task: What is trained: the batches, the loss and the validation.
        schedules: The learning-rate schedule; the engine steps its `per_step`.
        steps: Number of optimizer steps of the whole run.
        processes: The processes that train together.
        compiled_for: Number of images in the batches that the model is compiled for; batches with
            fewer run eagerly. None if the model is not compiled, or if batch sizes vary.
    """

    engine: Engine
    device: torch.device
    task: Task
    schedules: Schedules
    steps: int
    processes: Processes = ALONE
    compiled_for: int | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps of an epoch."""
        return steps_per_epoch(self.task.data.train, self.engine.accumulate)

    @property
    def model_is_shared(self) -> bool:
        """Whether the model is sharded, so that a forward pass needs all processes."""
        return sharded_as(self.engine.bare_model) is not None


def steps_per_epoch(train: Split, accumulate: int) -> int:
    """Return the optimizer steps of an epoch; the last one may have fewer micro-batches."""
    return -(-len(train) // accumulate)


def steps_of(config: RunConfig, in_an_epoch: int) -> int:
    """Return the optimizer steps of a run, given those of an epoch."""
    steps = config.epochs * in_an_epoch
    return steps if config.max_steps is None else min(steps, config.max_steps)


def set_up(
    config: Config,
    device: torch.device,
    weights: Mapping[str, torch.Tensor] | None = None,
    processes: Processes = ALONE,
    *,
    initial_weights: bool = True,
    trains: bool = True,
) -> Setup:
    """Build the objects that `config` names on `device`; every process of a run calls this.

    If `weights` is given, an fp32 state dict, the model starts from it. The pretrained weights or
    the file that the config names are loaded only without `weights`, and only if `initial_weights`
    is True; it is False if the caller loads other weights later. `trains` is False for evaluation,
    for which the batch may be larger than the training set.

    Raises:
        UserError: If the data, the model, its arguments, its weights or the recipe are invalid or
            not available, or if the config cannot work with these data or these processes.
    """
    in_parallel.refuse(config, device, processes)
    if device.type != "cpu" and device.index is not None:
        torch.accelerator.set_device_index(device)  # for code that uses the current GPU
    loaded = data.load(
        config.data,
        batch_size=config.batch_size,
        seed=config.seed,
        device=device,
        drop_last=config.drop_last,
        # BatchNorm has no statistics of a single value, unless it synchronises all processes.
        part=BatchShare(
            processes.rank, processes.size, 1 if config.distributed.sync_batchnorm else LEAST
        ),
    )
    if trains:
        batch_size.refuse(config, loaded.train.images, processes.size)
        loaded.hold()
    torch.manual_seed(config.seed)
    model = models.build(
        config.model,
        classes=len(loaded.classes),
        image_shape=loaded.image_shape,
        initial_weights=initial_weights and weights is None,
    )
    if weights is not None:
        models.load(model, weights, f"the weights do not fit model {config.model.name!r}")
    parallel = in_parallel.way(config, processes)
    # A model that is wrapped or changed for the run is not kept.
    plain = parallel is None and not config.model.checkpoint_activations
    model = kept.model(config, model, device) if plain else model.to(device)
    compiles = config.model.compile and compiling.pays(model, config.batch_size, loaded.image_shape)
    if parallel == "fsdp":
        model = in_parallel.shared_out(model, config)
    elif config.model.checkpoint_activations:
        in_parallel.computed_again(model, config)
    setup = assemble(config, loaded, model, device, processes, parallel=parallel, compiles=compiles)
    if compiles:
        models.compiled(setup.engine.model)
        # With auto_microbatch or several processes, batches can have many different sizes.
        alone = processes.size == 1 and not config.auto_microbatch
        if alone and len(loaded.train) > 1:
            setup = replace(setup, compiled_for=config.batch_size)
    if processes.rank > 0:
        # All processes start from the same weights, but must draw different dropout.
        torch.manual_seed(derive(config.seed, processes.rank))
    return setup


def assemble(
    config: Config,
    loaded: Data,
    model: nn.Module,
    device: torch.device,
    processes: Processes = ALONE,
    *,
    parallel: Literal["ddp", "fsdp", "dp"] | None = None,
    compiles: bool = False,
) -> Setup:
    """Build the optimizer, schedules and engine for a model, which "fsdp" requires to be sharded.

    The optimizer is fused on a GPU, for a model that will be compiled, and for steps that are
    replayed.

    Raises:
        UserError: If the optimizer, the schedule or the recipe is invalid, or if they do not fit
            together. The model is unchanged then.
    """
    minimised = loss.build(config, len(loaded.classes), device)
    images_per_step = config.batch_size * config.accumulate * processes.size
    scaling = config.lr_scaling
    optimizer = optim.build_optimizer(
        config.optimizer,
        model,
        classes=len(loaded.classes),
        fused=device.type == "cuda" or config.graph or (compiles and parallel != "fsdp"),
        lr_factor=scaling.factor(images_per_step) if scaling else 1.0,
        seed=config.seed,
    )
    in_an_epoch = steps_per_epoch(loaded.train, config.accumulate)
    steps = steps_of(config, in_an_epoch)
    schedule = schedules.build(config.schedule, optimizer, steps=steps, steps_per_epoch=in_an_epoch)
    engine = engine_of(
        config,
        model,
        optimizer,
        schedule,
        parallel=None if parallel == "fsdp" else parallel,
        sync_batchnorm=parallel == "ddp" and config.distributed.sync_batchnorm,
    )
    task = Classification(loaded, minimised, device, processes)
    return Setup(engine, device, task, schedule, steps, processes)


def engine_of(
    config: RunConfig,
    model: nn.Module,
    optimizer: Optimizer,
    schedule: Schedules,
    *,
    parallel: Literal["ddp", "dp"] | None = None,
    sync_batchnorm: bool = False,
) -> Engine:
    """Build the engine of a run; see `Engine` for `parallel` and `sync_batchnorm`.

    Raises:
        UserError: If model, optimizer, schedule and recipe do not fit together. The model is
            unchanged then.
    """
    try:
        return Engine(
            model,
            optimizer,
            recipe=config.build_recipe(),
            accumulate=config.accumulate,
            clip_norm=config.clip_norm,
            scheduler=schedule.per_step,
            average=EMA(config.average.decay) if config.average else None,
            seed=config.seed,
            parallel=parallel,
            sync_batchnorm=sync_batchnorm,
            # With "stop", a run shows at which step it became non-finite, and ends after it.
            nonfinite="apply" if config.on_nonfinite == "stop" else "skip",
        )
    except (TypeError, ValueError) as error:  # the model or optimizer does not fit the recipe
        raise UserError(str(error)) from error
