"""Finds the errors that a cell would raise, before the first cell starts.

The engine of each arm is built once, on a model that is not trained. So the same code raises the
error here and in the cell, and this file needs no rules.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.train import data
from halfstep.train.build import in_parallel, models
from halfstep.train.build.dry_run import dry_run
from halfstep.train.data.pipeline import batch_size
from halfstep.train.processes.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from halfstep.compare.plan.grid import Arm
    from halfstep.train.config import Config


def refuse(arms: Mapping[Arm, Config], device: torch.device, processes: int) -> None:
    """Refuse arms that cannot be trained.

    Args:
        arms: Each arm with the config of one of its cells.
        device: The device of the cells; this machine need not have it.
        processes: The number of processes that train a cell.

    Raises:
        UserError: If the data or the model cannot be loaded, or if parts of a run do not fit
            together. If the recipe is the reason, the message names the recipe.
    """
    several = Processes(size=processes)
    _refuse(arms, lambda config: in_parallel.refuse(config, device, several))
    for alike in _by_data_and_model(arms):
        config = next(iter(alike.values()))
        loaded = data.load(
            config.data, batch_size=config.batch_size, seed=config.seed, device=device
        )
        images = loaded.train.images
        _refuse(alike, partial(batch_size.refuse, images=images, processes=processes))
        model = models.build(
            config.model, classes=len(loaded.classes), image_shape=loaded.image_shape
        )
        _refuse(alike, partial(dry_run, loaded=loaded, model=model))


def _refuse(arms: Mapping[Arm, Config], check: Callable[[Config], None]) -> None:
    """Check every arm; raise one error that names all recipes that fail the check."""
    refused: dict[Arm, ValueError] = {}
    for arm, config in arms.items():
        try:
            check(config)
        except ValueError as error:
            # If the check also fails under fp32, the recipe is not the reason: raise that error.
            check(config.model_copy(update={"recipe": "fp32"}))
            refused[arm] = error
    if refused:
        (first, reason), *_ = refused.items()
        names = ",".join(dict.fromkeys(arm.recipe for arm in refused))
        raise UserError(f"{first.label}: {reason}; or leave {names} out of --recipes") from reason


def _by_data_and_model(arms: Mapping[Arm, Config]) -> list[dict[Arm, Config]]:
    groups: dict[str, dict[Arm, Config]] = {}
    for arm, config in arms.items():
        needs = config.model_dump(mode="json", include={"data", "model", "batch_size"})
        groups.setdefault(json.dumps(needs, sort_keys=True), {})[arm] = config
    return list(groups.values())
