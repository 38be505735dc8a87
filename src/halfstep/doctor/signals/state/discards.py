"""Counts how often in a row a loop clears scaled gradients with inf or NaN that nothing has used.

Other loops also clear scaled gradients without using them, such as adversarial training, but use
gradients again after a few times. So gradients are read only from the fourth time in a row on, and
no further after they were finite once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record import Discarded
from halfstep.doctor.record.sites import site
from halfstep.doctor.signals.state.finite import sample_is_finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from halfstep.doctor.record.sites import Mark

FEWEST = 4


class Discards:
    """Counts the gradients that the loop clears, since a scaler or an optimizer last used any."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again, because a scaler or an optimizer uses gradients."""
        self._count = 0
        self._read = False
        self._finite = False
        self._mark: Mark | None = None
        self._scale: float | None = None

    def take(self, gradients: Sequence[torch.Tensor] | None) -> bool:
        """Count gradients that the loop is about to clear, or that it has set to None.

        Args:
            gradients: The gradients; from the fourth time in a row on, this waits for the device.
                None if they are gone: only repeating the step shows whether they were finite.

        Returns:
            Whether these are the first gradients of the row that contain inf or NaN, or may do so.
        """
        self._count += 1
        if self._count < FEWEST or self._finite:
            return False
        first, self._read = not self._read, True
        self._finite = gradients is not None and sample_is_finite(gradients, self._count)
        return first and not self._finite

    def note(self, mark: Mark | None, scale: float | None) -> None:
        """Note the line of the last backward and the loss scale."""
        self._mark, self._scale = mark, scale

    def freeze(self) -> Discarded:
        """Return the count; it is 0 if gradients were read and finite, or none were read."""
        if not self._read or self._finite:
            return Discarded()
        return Discarded(self._count, self._scale, site(self._mark))
