"""What would refuse a run, asked without one: everything is built, and given back untrained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.train.build.setup import assemble

if TYPE_CHECKING:
    from torch import nn

    from halfstep.train.config import Config
    from halfstep.train.data import Data

# A GPU's memory is for runs. What the engine refuses there, it refuses on the CPU too.
_DEVICE = torch.device("cpu")


def refuse(config: Config, loaded: Data, model: nn.Module) -> None:
    """Refuse what does not go together: optimizer, schedule, recipe and model.

    Args:
        config: Of the run.
        loaded: Its data.
        model: Its model, on the CPU; it comes back in its own format, perhaps with rounded weights.

    Raises:
        UserError: As the run would.
    """
    assemble(config, loaded, model, _DEVICE).engine.close()
