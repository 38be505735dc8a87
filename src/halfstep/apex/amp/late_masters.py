"""Master weights that Apex makes late: at the first step, not when a model is cast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.formats import format_name
from halfstep.techniques.base import HALVES
from halfstep.techniques.master import MasterWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer


class LateMasterWeights(MasterWeights):
    """Let `prepare` remember what parameters are cast from, and `adopt` make their masters.

    A parameter that is written to in between gets its master from what was written.

    Args:
        dtype: Format that the models are cast to, if they are.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__(format_name(dtype or torch.float32))

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Remember the values of what the optimizers hold, before the models are cast."""
        self._optimizers = optimizers
        params = {param for model in models for param in model.parameters()}
        held = {p for each in optimizers for group in each.param_groups for p in group["params"]}
        # Once a parameter has been cast, this is the only owner of its fp32 values.
        self._cast_from = {p: p.detach() for p in held & params if p.dtype not in HALVES}
        self._export_masters(models)
