"""torch's `ZeroRedundancyOptimizer`, known without the price of importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.optim import Optimizer


def is_zero(optimizer: Optimizer) -> bool:
    """Tell whether `optimizer` is a `ZeroRedundancyOptimizer`."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


def local_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer whose state this process keeps: ZeRO's own part, or `optimizer`.

    The state dict of ZeRO itself is there only after all processes have sent theirs.
    """
    return cast("ZeroRedundancyOptimizer", optimizer).optim if is_zero(optimizer) else optimizer
