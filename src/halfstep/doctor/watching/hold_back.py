"""Keeps an optimizer from applying a bad step, without waiting for the device.

A fused optimizer skips a step by itself where its `found_inf` is not zero, which a gradient scaler
sets. Without a scaler it can be set from the step's own numbers, so that the parameters are still
those of the bad step when its numbers have arrived and it is run again. On request only: what
follows a bad step is then not what the program would have computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from halfstep.doctor.signals.facts import parameters_of

if TYPE_CHECKING:
    from torch.optim import Optimizer


def can_hold_back(optimizer: Optimizer) -> bool:
    """Return whether an optimizer skips by itself, on gradients that no other process has."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False)) and not any(
        isinstance(each, DTensor) for each in parameters_of(optimizer)
    )


class HoldBack:
    """Holds bad steps back.

    Args:
        on: Whether to.
    """

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self._held: Optimizer | None = None

    def before_step(self, optimizer: Optimizer, numbers: list[torch.Tensor]) -> bool:
        """Let an optimizer skip the step that it is about to make if it is bad.

        Args:
            optimizer: It; not stepped by a scaler.
            numbers: Of the step, scalars on its device; one that is not finite makes it bad.

        Returns:
            Whether it would.
        """
        if (
            not (self.on and numbers)
            or hasattr(optimizer, "found_inf")
            or not can_hold_back(optimizer)
        ):
            return False
        each = torch.stack([number.float().reshape(()) for number in numbers])
        found_inf = each.isfinite().all().logical_not().float()
        optimizer.found_inf = found_inf  # type: ignore[attr-defined]  # as GradScaler does
        self._held = optimizer
        return True

    def after_step(self) -> None:
        """Leave the optimizer as it was."""
        if self._held is not None:
            del self._held.found_inf  # type: ignore[attr-defined]  # set by `before_step`
            self._held = None
