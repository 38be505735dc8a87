"""Builds everything that a config names: data, model, optimizer, schedule and the engine over them.

Training and evaluation both start here, so that they cannot disagree on what a config means. All
that can be wrong with a config is found here, before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from halfstep.engine import EMA, Engine
from halfstep.engine.parallel.fsdp import sharded_as
from halfstep.errors import UserError
from halfstep.train import data
from halfstep.train.build import compiling, in_parallel, loss, models, optim, schedules
from halfstep.train.data.pipeline.order import BatchShare
from halfstep.train.data.pipeline.samples import LEAST
from halfstep.train.data.sources.seeding import derive
from halfstep.train.processes.processes import ALONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from halfstep.train.build.loss import Loss
    from halfstep.train.build.schedules import Schedules
    from halfstep.train.config import Config
    from halfstep.train.data import Data
    from halfstep.train.processes.processes import Processes


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run works with.

    Attributes:
        engine: Owns the model and the optimizer.
        device: Where the model is.
        data: What it learns from.
        schedules: What moves the learning rate; the engine steps `per_step` itself.
        steps: Optimizer steps of the whole run.
        loss: What training minimises.
        processes: Those that train together.
        compiled_for: Images of the batches that the model is compiled for; fewer run eagerly. None
            where it is not compiled, and where batches are of any size.
    """

    engine: Engine
    device: torch.device
    data: Data
    schedules: Schedules
    steps: int
    loss: Loss
    processes: Processes = ALONE
    compiled_for: int | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        return steps_per_epoch(self.data, self.engine.accumulate)

    @property
    def model_is_shared(self) -> bool:
        """Whether each process holds a part of the model, so that a forward pass takes all."""
        return sharded_as(self.engine.bare_model) is not None

    def preprocessing(self) -> dict[str, Any]:
        """Return what turns pixels from 0 to 1 into the model's input, as plain data."""
        mean, std = self.data.normalisation
        return {
            "image_shape": list(self.data.image_shape),
            "mean": list(mean),
            "std": list(std),
        }


def steps_per_epoch(loaded: Data, accumulate: int) -> int:
    """Return the optimizer steps of an epoch; its last one may be of fewer micro-batches."""
    return -(-len(loaded.train) // accumulate)


def set_up(
    config: Config,
    device: torch.device,
    weights: Mapping[str, torch.Tensor] | None = None,
    processes: Processes = ALONE,
    *,
    initial_weights: bool = True,
) -> Setup:
    """Build what `config` names on `device`; each of the processes that train together calls this.

    The model starts from `weights`, an fp32 state dict, instead of the seed's initial weights. The
    weights that the config names are not loaded then, nor without `initial_weights`, where others
    follow.

    Raises:
        UserError: If the data, the model, its arguments, its weights or the recipe cannot be had,
            or if the processes cannot be what the config asks of them.
    """
    in_parallel.refuse(config, device, processes)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # what asks for "the" GPU means this one
    loaded = data.load(
        config.data,
        batch_size=config.batch_size,
        seed=config.seed,
        device=device,
        drop_last=config.drop_last,
        # BatchNorm has no statistics of a single value, unless it sees those of all processes.
        part=BatchShare(
            processes.rank, processes.size, 1 if config.distributed.sync_batchnorm else LEAST
        ),
    )
    torch.manual_seed(config.seed)
    model = models.build(
        config.model,
        classes=len(loaded.classes),
        image_shape=loaded.image_shape,
        initial_weights=initial_weights and weights is None,
    )
    if weights is not None:
        models.load(model, weights, f"the weights do not fit model {config.model.name!r}")
    model.to(device)
    compiles = config.model.compile and compiling.pays(model, config.batch_size, loaded.image_shape)
    parallel = in_parallel.way(config, processes)
    if parallel == "fsdp":
        model = in_parallel.shared_out(model, config)
    elif config.model.checkpoint_activations:
        in_parallel.computed_again(model, config)
    setup = assemble(config, loaded, model, device, processes, parallel=parallel, compiles=compiles)
    if compiles:
        models.compiled(setup.engine.model)
        # Pieces of a batch, and what several processes have of the last one, are of many sizes.
        alone = processes.size == 1 and not config.auto_microbatch
        if alone and len(loaded.train) > 1:
            setup = replace(setup, compiled_for=config.batch_size)
    if processes.rank > 0:
        # The same weights everywhere, but not the same dropout.
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
    """Build optimizer, schedules and engine over a model, which under "fsdp" is shared out.

    The optimizer is fused on a GPU, and for a model that will be compiled.

    Raises:
        UserError: If the optimizer, the schedule or the recipe cannot be had, or not together; the
            model is then as before.
    """
    minimised = loss.build(config, len(loaded.classes), device)
    images_per_step = config.batch_size * config.accumulate * processes.size
    scaling = config.lr_scaling
    optimizer = optim.build_optimizer(
        config.optimizer,
        model,
        classes=len(loaded.classes),
        fused=device.type == "cuda" or (compiles and parallel != "fsdp"),
        lr_factor=scaling.factor(images_per_step) if scaling else 1.0,
        seed=config.seed,
    )
    in_an_epoch = steps_per_epoch(loaded, config.accumulate)
    steps = config.epochs * in_an_epoch
    if config.max_steps is not None:
        steps = min(steps, config.max_steps)
    schedule = schedules.build(config.schedule, optimizer, steps=steps, steps_per_epoch=in_an_epoch)
    try:
        engine = Engine(
            model,
            optimizer,
            recipe=config.build_recipe(),
            accumulate=config.accumulate,
            clip_norm=config.clip_norm,
            scheduler=schedule.per_step,
            average=EMA(config.average.decay) if config.average else None,
            seed=config.seed,
            parallel=None if parallel == "fsdp" else parallel,
            sync_batchnorm=parallel == "ddp" and config.distributed.sync_batchnorm,
        )
    except (TypeError, ValueError) as error:  # what cannot work under the recipe
        raise UserError(str(error)) from error
    return Setup(engine, device, loaded, schedule, steps, minimised, processes)
