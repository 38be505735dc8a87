"""The loss scale of one loss, on the host, with Apex's schedule and attribute names.

Programs read and set `_loss_scale` and `_unskipped`, replace `_overflow_buf`, and pickle the whole
object. So its attributes are plain numbers, apart from `_overflow_buf`. Gradients are unscaled by
the same code as in the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.apex.amp._amp_state import maybe_print
from halfstep.kernels.gradients import unscale
from halfstep.loss_scale import LossScale

if TYPE_CHECKING:
    from collections.abc import Sequence


class LossScaler:
    """A static or dynamic loss scale.

    Args:
        loss_scale: "dynamic" or the static scale.
        init_scale: Initial value of a dynamic scale; at most `max_loss_scale`.
        scale_factor: Factor by which a dynamic scale grows, and divisor when it backs off.
        scale_window: Number of consecutive updates without overflow after which the scale grows.
        min_loss_scale: Lower limit of a dynamic scale. None means 2**-10: without a limit the scale
            could fall to zero, by which gradients cannot be divided.
        max_loss_scale: Upper limit of a dynamic scale.
    """

    def __init__(
        self,
        loss_scale: float | str,
        init_scale: float = 2.0**16,
        scale_factor: float = 2.0,
        scale_window: int = 2000,
        min_loss_scale: float | None = None,
        max_loss_scale: float = 2.0**24,
    ) -> None:
        self.dynamic = loss_scale == "dynamic"
        self._loss_scale = min(max_loss_scale, init_scale) if self.dynamic else float(loss_scale)
        self._max_loss_scale = max_loss_scale
        self._min_loss_scale = min_loss_scale
        self._scale_factor = scale_factor
        self._scale_seq_len = scale_window
        self._unskipped = 0
        self._has_overflow = False
        self._overflow_buf = torch.zeros(())

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Apex's pickles lack some attributes, and their buffer may be on a device that is missing.
        defaults = vars(LossScaler("dynamic"))
        self.__dict__.update({**defaults, **state, "_overflow_buf": torch.zeros(())})

    def loss_scale(self) -> float:
        """Return the scale."""
        return self._loss_scale

    @property
    def scale(self) -> torch.Tensor:
        """The scale as a scalar tensor, for `step_observer`."""
        return torch.tensor(self._loss_scale)

    @property
    def settings(self) -> LossScale:
        """The settings of the scale, for `step_observer`."""
        return LossScale(
            dynamic=self.dynamic,
            init=self._loss_scale,
            growth_factor=self._scale_factor,
            growth_interval=self._scale_seq_len,
            backoff_factor=1 / self._scale_factor,
            floor=min(self.floor(), self._loss_scale),
            ceiling=max(self._max_loss_scale, self._loss_scale),
        )

    def floor(self) -> float:
        """Return the lower limit of a dynamic scale."""
        return self._min_loss_scale or LossScale().floor

    def clear_overflow_state(self) -> None:
        """Forget whether non-finite gradients were found."""
        self._has_overflow = False
        self._overflow_buf.zero_()

    def unscale_(self, grads: Sequence[torch.Tensor]) -> None:
        """Divide gradients by the scale in place; a dynamic scale records non-finite values."""
        if not grads or (self._loss_scale == 1.0 and not self.dynamic):
            return
        found = torch.zeros((), dtype=torch.float32)
        unscale(grads, torch.tensor(1.0 / self._loss_scale), found)
        if self.dynamic and found:
            self._has_overflow = True

    def update_scale(self) -> bool:
        """Back off after an overflow, or grow after enough updates without an overflow.

        Returns:
            Whether the step is to be skipped.
        """
        # A program that checks gradients itself may replace this buffer by its own.
        overflow = self._has_overflow or bool(self._overflow_buf.any())
        if overflow and self.dynamic:
            self._has_overflow = True
            self._back_off()
            self._unskipped = 0
            return True
        self._unskipped += 1
        if self._unskipped == self._scale_seq_len and self.dynamic:
            self._loss_scale = min(self._max_loss_scale, self._loss_scale * self._scale_factor)
            self._unskipped = 0
        return False

    def _back_off(self) -> None:
        if self._loss_scale <= self.floor():
            maybe_print(
                f"The loss scale is at its floor, {self.floor():g}, and gradients are still not "
                "finite: no value of the loss scale helps; look for inf or NaN in the data, the "
                "loss or the weights"
            )
        self._loss_scale = max(self.floor(), self._loss_scale / self._scale_factor)


# Checkpoints of FP16_Optimizer contain this object. With this line, they and Apex's checkpoints can
# be loaded with weights_only=True.
torch.serialization.add_safe_globals([LossScaler, (LossScaler, "apex.amp.scaler.LossScaler")])
