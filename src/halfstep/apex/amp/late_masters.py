"""Master weights that are created at the first use, as in Apex, not when a model is cast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES
from halfstep.mechanisms.master_weights.technique import MasterWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer


class LateMasterWeights(MasterWeights):
    """Master weights from values that `prepare` stores before the models are cast.

    `adopt` creates the masters later. If the program changes a parameter before that, its master
    gets the changed value.

    Args:
        dtype: The format to which the models are cast; None if they are not cast.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__(format_name(dtype or torch.float32))

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Store the values of the optimizers' parameters, before the models are cast."""
        self._optimizers = optimizers
        params = {param for model in models for param in model.parameters()}
        held = {p for each in optimizers for group in each.param_groups for p in group["params"]}
        # Once a parameter has been cast, this is the only reference to its fp32 values.
        self._cast_from = {p: p.detach() for p in held & params if p.dtype not in HALVES}
        self._export_masters(models)
