"""Builds everything that a config names: data, model, optimizer, schedule and the engine over them.

Training and evaluation both start here, so that they cannot disagree on what a config means. All
that can be wrong with a config is found here, before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from halfstep.engine import Engine
from halfstep.errors import UserError
from halfstep.train import data, models, optim

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from halfstep.train.config import Config
    from halfstep.train.data.splits import Batches

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run works with.

    Attributes:
        engine: Owns the model and the optimizer.
        device: Where the model is.
        classes: Names of the classes.
        train: Batches of the training split, shuffled at each pass.
        val: Batches of the validation split.
        steps: Optimizer steps of the whole run.
    """

    engine: Engine
    device: torch.device
    classes: tuple[str, ...]
    train: Batches
    val: Batches
    steps: int

    def on_device(self, batches: Iterable[Any]) -> Iterator[Batch]:
        """Copy batches to the device, without waiting where the memory is pinned."""
        for images, labels in batches:
            yield (
                images.to(self.device, non_blocking=True),
                labels.to(self.device, non_blocking=True),
            )


def set_up(
    config: Config, device: torch.device, weights: Mapping[str, torch.Tensor] | None = None
) -> Setup:
    """Build what `config` names on `device`.

    Args:
        config: What to build.
        device: Where the model goes.
        weights: An fp32 state dict to start from instead of the seed's initial weights.

    Raises:
        UserError: If the model, its arguments, its weights or the recipe cannot be had.
    """
    splits = data.load(config.data)
    train, val = data.loaders(
        splits,
        batch_size=config.batch_size,
        seed=config.seed,
        workers=config.data.workers,
        pinned=device.type == "cuda",
    )
    torch.manual_seed(config.seed)
    model = models.build(config.model, classes=len(splits.classes), image_shape=splits.image_shape)
    if weights is not None:
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:160]
            raise UserError(
                f"the weights do not fit model {config.model.name!r}: {reason}"
            ) from error
    model.to(device)
    optimizer = optim.build_optimizer(
        config.optimizer, model.parameters(), fused=device.type == "cuda"
    )
    steps = config.epochs * -(-len(train) // config.accumulate)
    engine = Engine(
        model,
        optimizer,
        recipe=config.build_recipe(),
        accumulate=config.accumulate,
        clip_norm=config.clip_norm,
        scheduler=optim.build_schedule(config.schedule, optimizer, steps),
        seed=config.seed,
    )
    return Setup(engine, device, splits.classes, train, val, steps)
