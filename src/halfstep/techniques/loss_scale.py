"""Loss scaling: keep small gradients representable, and back off when large ones are not.

Micikevicius et al., "Mixed Precision Training" (arXiv:1710.03740), section 3.2. The arithmetic is
that of `torch.amp.GradScaler`, bit for bit, on the device and without waiting for it; what is added
is a floor, a ceiling and a history, and that nothing here belongs to one optimizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from halfstep.techniques.base import HALVES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.loss_scale import LossScale


class ScaleChange(NamedTuple):
    """An entry of the history: from the end of `step` on, the scale was `scale`, for `why`."""

    step: int
    scale: float
    why: str


class LossScaleCollapse(RuntimeError):  # noqa: N818  (the word of the vocabulary)
    """The loss scale cannot help any more: gradients stay non-finite however small it gets."""


class LossScaler:
    """One loss scale and its state, kept on a device.

    Args:
        settings: How the scale starts, grows and backs off.
        device: Where the scale lives.
    """

    def __init__(self, settings: LossScale, device: torch.device) -> None:
        self.settings = settings
        self.scale = torch.tensor(settings.init, dtype=torch.float32, device=device)
        self._growth_tracker = torch.zeros((), dtype=torch.int32, device=device)
        self._skips_in_a_row = 0
        self.history = [ScaleChange(0, settings.init, "start")]

    def apply(self, loss: torch.Tensor) -> torch.Tensor:
        """Multiply a loss by the scale; a half loss is widened first, as its product overflows."""
        return _widen(loss) * self.scale.to(loss.device)

    def inverse(self) -> torch.Tensor:
        """Return 1 / scale as an fp32 scalar, rounded once (the quotient is taken in fp64)."""
        return self.scale.double().reciprocal().float()

    def unscale_(
        self, grads: Sequence[torch.Tensor], found_inf: torch.Tensor, *, factor: float = 1.0
    ) -> None:
        """Multiply gradients by `factor` / scale in place and look for non-finite ones.

        Args:
            grads: Dense gradients of any shape, each fp32 or fp64, on any devices.
            found_inf: fp32 scalar, set to 1 where a gradient is not finite before it is multiplied.
            factor: Weight of the window, when it is not the one its losses were divided by.
        """
        inverse = self.inverse() if factor == 1.0 else self.inverse() * factor
        multiply_and_check_(grads, inverse, found_inf)

    def update(self, found_inf: torch.Tensor) -> None:
        """Back off if any gradient of the step was not finite, else count towards growth."""
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

    def record(self, step: int, *, scale: float, found_inf: bool) -> str | None:
        """Enter what became of a step, once it is known on the host, into the history.

        Args:
            step: Number of the step, from 1.
            scale: The scale after the step.
            found_inf: Whether a gradient of the step was not finite.

        Returns:
            Why this is a collapse, or None.
        """
        before = self.history[-1].scale
        if scale != before:
            self.history.append(ScaleChange(step, scale, "overflow" if found_inf else "growth"))
        self._skips_in_a_row = self._skips_in_a_row + 1 if found_inf else 0
        if found_inf and self.settings.dynamic and before <= self.settings.floor:
            return f"gradients were not finite even at its floor, {self.settings.floor:g}"
        if self._skips_in_a_row >= self.settings.collapse_after:
            return f"{self._skips_in_a_row} steps in a row had non-finite gradients"
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state: plain numbers, exact."""
        return {
            "scale": float(self.scale),
            "growth_tracker": int(self._growth_tracker),
            "skips_in_a_row": self._skips_in_a_row,
            "history": [list(change) for change in self.history],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.scale.fill_(state["scale"])
        self._growth_tracker.fill_(state["growth_tracker"])
        self._skips_in_a_row = state["skips_in_a_row"]
        self.history = [ScaleChange(*change) for change in state["history"]]


def multiply_and_check_(
    grads: Sequence[torch.Tensor], factor: torch.Tensor, found_inf: torch.Tensor
) -> None:
    """Multiply gradients in place and look for non-finite ones, on their own devices.

    Args:
        grads: Dense gradients of any shape, on any devices.
        factor: fp32 scalar, the inverse of a loss scale.
        found_inf: fp32 scalar, set to 1 where a gradient is not finite before it is multiplied.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for grad in grads:
        groups.setdefault((grad.device, grad.dtype), []).append(grad)
    for (device, _), group in groups.items():
        here = (
            found_inf if device == found_inf.device else torch.zeros_like(found_inf, device=device)
        )
        torch._amp_foreach_non_finite_check_and_unscale_(group, here, factor.to(device))
        if here is not found_inf:
            found_inf.copy_(torch.maximum(found_inf, here.to(found_inf.device)))


def _widen(loss: torch.Tensor) -> torch.Tensor:
    return loss.float() if loss.dtype in HALVES else loss
