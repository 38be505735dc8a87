"""Keeps an optimizer from applying a bad step, without waiting for the device.

A fused optimizer skips a step by itself if its `found_inf`, which a gradient scaler sets, is not
zero. Without a scaler, doctor can set `found_inf` from the loss and the gradient norm. The
parameters are then unchanged when the step is run again. This is done only on request, because it
changes the results after a bad step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.tensors.local import is_sharded

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from halfstep.doctor.signals.watched import Watched


def can_hold_back(optimizer: Optimizer) -> bool:
    """Return whether an optimizer obeys `found_inf` and has no sharded parameters."""
    obeys = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
    return obeys and not any(map(is_sharded, parameters_of(optimizer)))


class HoldBack(Signal):
    """Makes fused optimizers skip bad steps, if the settings of the watch ask for it."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._on = watched.settings.hold_back
        self._held: Optimizer | None = None

    def holds(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer, which no scaler steps, would skip a bad step."""
        return self._on and not hasattr(optimizer, "found_inf") and can_hold_back(optimizer)

    def hold(self, optimizer: Optimizer, numbers: list[torch.Tensor]) -> bool:
        """Make an optimizer skip its next step if the step is bad.

        Args:
            optimizer: The optimizer; no scaler steps it.
            numbers: Scalars on its device; the step is bad if one of them is not finite.

        Returns:
            Whether the optimizer can skip the step.
        """
        if not (numbers and self.holds(optimizer)):
            return False
        each = torch.stack([number.float().reshape(()) for number in numbers])
        found_inf = each.isfinite().all().logical_not().float()
        optimizer.found_inf = found_inf  # type: ignore[attr-defined]  # as GradScaler does
        self._held = optimizer
        return True

    def release(self) -> None:
        """Remove `found_inf` from the optimizer."""
        if self._held is not None:
            del self._held.found_inf  # type: ignore[attr-defined]  # set by `hold`
            self._held = None
