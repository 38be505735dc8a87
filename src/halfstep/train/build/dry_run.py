"""Refuses what a run would, without one: everything is built, and given back untrained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.train.build.setup import assemble

if TYPE_CHECKING:
    from torch import nn

    from halfstep.train.config import Config
    from halfstep.train.data import Data


def dry_run(config: Config, loaded: Data, model: nn.Module) -> None:
    """Refuse, as the run would, an optimizer, a schedule or a recipe that a model cannot have.

    The model comes back in its own format, perhaps with rounded weights.
    """
    # A GPU's memory is for runs. What the engine refuses there, it refuses on the CPU too.
    assemble(config, loaded, model, torch.device("cpu")).engine.close()
