"""Finds before the first cell starts what a cell would fail at when its turn comes.

Each arm's engine is built once, over a model that nothing is trained with, so that what refuses is
what would refuse in the cell: there are no rules here.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.train import data
from halfstep.train.build import in_parallel, models
from halfstep.train.build.dry_run import dry_run
from halfstep.train.processes.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from halfstep.compare.plan.grid import Arm
    from halfstep.train.config import Config


def refuse(arms: Mapping[Arm, Config], device: torch.device, processes: int) -> None:
    """Refuse arms that could not be trained.

    Args:
        arms: Each with the config of one of its cells.
        device: Where cells run; it need not be here.
        processes: How many train a cell.

    Raises:
        UserError: If the data or the model cannot be had, or what belongs to a run does not go
            together; what a recipe refuses names the recipe.
    """
    several = Processes(size=processes)
    _refuse(arms, lambda config: in_parallel.refuse(config, device, several))
    for alike in _by_data_and_model(arms):
        config = next(iter(alike.values()))
        loaded = data.load(
            config.data, batch_size=config.batch_size, seed=config.seed, device=device
        )
        model = models.build(
            config.model, classes=len(loaded.classes), image_shape=loaded.image_shape
        )
        _refuse(alike, partial(dry_run, loaded=loaded, model=model))


def _refuse(arms: Mapping[Arm, Config], check: Callable[[Config], None]) -> None:
    """Check every arm, and name all whose recipe is at fault at once."""
    refused: dict[Arm, ValueError] = {}
    for arm, config in arms.items():
        try:
            check(config)
        except ValueError as error:
            # Raises what is nothing to do with the recipe.
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
