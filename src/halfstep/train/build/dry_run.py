"""Finds the refusals of a run without running it: builds the engine, and closes it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.train.build.setup import assemble

if TYPE_CHECKING:
    from torch import nn

    from halfstep.train.config import Config
    from halfstep.train.data import Data


def dry_run(config: Config, loaded: Data, model: nn.Module) -> None:
    """Raise the error of a run whose optimizer, schedule or recipe does not fit its model.

    Afterwards the model has its original formats, but its weights may be rounded.
    """
    # On the CPU, because runs need the GPU's memory; the engine refuses the same there.
    assemble(config, loaded, model, torch.device("cpu")).engine.close()
