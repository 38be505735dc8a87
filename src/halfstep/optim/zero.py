"""Recognises torch's `ZeroRedundancyOptimizer` without importing it, because the import is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.optim import Optimizer


def is_zero(optimizer: Optimizer) -> bool:
    """Tell whether `optimizer` is a `ZeroRedundancyOptimizer`."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


def local_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer with this process's state: ZeRO's local optimizer, or `optimizer`.

    ZeRO's own state dict is available only after all processes have sent their parts.
    """
    return cast("ZeroRedundancyOptimizer", optimizer).optim if is_zero(optimizer) else optimizer
