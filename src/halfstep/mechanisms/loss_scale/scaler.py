"""Loss scaling: keeps small gradients representable, and backs off when large ones overflow.

Micikevicius et al., "Mixed Precision Training" (arXiv:1710.03740), section 3.2. The arithmetic is
that of `torch.amp.GradScaler`, bit for bit. It runs on the device, and the host does not wait for
it. In addition, the scale has a floor, a ceiling and a history, and several optimizers can share
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from halfstep.loss_scale import LossScale


class ScaleChange(NamedTuple):
    """An entry of the history: `why` the scale changed to `scale` at the end of `step`."""

    step: int
    scale: float
    why: str


class LossScaleCollapse(RuntimeError):  # noqa: N818  (the word of the vocabulary)
    """Raised when a lower loss scale does not help.

    Gradients were non-finite at the scale's floor, or in `collapse_after` consecutive steps.
    """


class LossScaler:
    """One loss scale and its state, kept on a device.

    Args:
        settings: The initial scale, growth, backoff and limits.
        device: The device of the scale.

    Attributes:
        scale: The loss scale, an fp32 scalar, which every change writes into. Copy it to keep the
            value of a step.
        history: The initial scale and every change of it.
    """

    def __init__(self, settings: LossScale, device: torch.device) -> None:
        self.settings = settings
        self.scale = torch.tensor(settings.init, dtype=torch.float32, device=device)
        self._growth_tracker = torch.zeros((), dtype=torch.int32, device=device)
        self._skips_in_a_row = 0
        self.history = [ScaleChange(0, settings.init, "start")]

    def apply(self, loss: torch.Tensor) -> torch.Tensor:
        """Multiply a loss by the scale, a half loss in fp32, because the product would overflow."""
        return _widen(loss) * self.scale.to(loss.device)

    def inverse(self) -> torch.Tensor:
        """Return 1 / scale as an fp32 scalar, computed in fp64 and rounded once."""
        return self.scale.double().reciprocal().float()

    def update(self, found_inf: torch.Tensor) -> None:
        """Lower the scale if `found_inf` is 1, else count the step towards the next growth."""
        settings = self.settings
        if not settings.dynamic:
            return
        torch._amp_update_scale_(
            self.scale,
            self._growth_tracker,
            found_inf,
            settings.growth_factor,
            settings.backoff_factor,
            settings.growth_interval,
        )
        self.scale.clamp_(settings.floor, settings.ceiling)

    def may_collapse(self, *, ahead: int) -> bool:
        """Tell whether a non-finite gradient in the next step could be a collapse.

        Args:
            ahead: Number of the last steps that `record` has not entered yet.
        """
        settings = self.settings
        lowest = self.history[-1].scale * settings.backoff_factor**ahead
        at_floor = settings.dynamic and lowest <= settings.floor
        return at_floor or self._skips_in_a_row + ahead + 1 >= settings.collapse_after

    def record(self, step: int, *, scale: float, found_inf: bool) -> str | None:
        """Enter the result of a step into the history, once the host knows this result.

        Args:
            step: Number of the step; the first step is 1.
            scale: The scale after the step.
            found_inf: Whether a gradient of the step was not finite.

        Returns:
            The reason why the loss scale has collapsed, or None if it has not.
        """
        before = self.history[-1].scale
        if scale != before:
            self.history.append(ScaleChange(step, scale, "overflow" if found_inf else "growth"))
        self._skips_in_a_row = self._skips_in_a_row + 1 if found_inf else 0
        if found_inf and self.settings.dynamic and before <= self.settings.floor:
            return (
                f"gradients were not finite even at its minimum, {self.settings.floor:g} (`floor`)"
            )
        if self._skips_in_a_row >= self.settings.collapse_after:
            return (
                f"{self._skips_in_a_row} steps in a row had non-finite gradients, and it is now "
                f"{scale:g}"
            )
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers, without rounding."""
        return {
            "scale": float(self.scale),
            "growth_tracker": int(self._growth_tracker),
            "skips_in_a_row": self._skips_in_a_row,
            "history": [list(change) for change in self.history],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self.scale.fill_(state["scale"])
        self._growth_tracker.fill_(state["growth_tracker"])
        self._skips_in_a_row = state["skips_in_a_row"]
        self.history = [ScaleChange(*change) for change in state["history"]]


def _widen(loss: torch.Tensor) -> torch.Tensor:
    return loss.float() if loss.dtype in HALVES else loss
