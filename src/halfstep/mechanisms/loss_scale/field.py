"""Field `loss_scale`: the settings of the loss scale."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from halfstep.loss_scale import LossScale
from halfstep.mechanisms.part import Part

if TYPE_CHECKING:
    from halfstep.mechanisms.part import Use, Whole


class Scaling(Part):
    """Multiplies the loss, so that small gradients do not underflow in a narrow format.

    This part has no technique. Loss scaling decides whether a step happens, and only the engine
    may decide that.
    """

    field = "loss_scale"
    place = 100
    purpose = "Factor that multiplies the loss, so that small gradients do not underflow in fp16."
    allowed = {
        "dynamic": "grows while gradients are finite, and backs off when they are not",
        "a number": "a constant scale, such as 1024",
        "a mapping": "fields of `LossScale`, such as {init: 1024, growth_interval: 100}",
    }

    @classmethod
    def parse(cls, given: Any) -> Self:
        """Parse "dynamic", a number, or a mapping of the fields of `LossScale`."""
        return cls(LossScale.parse(given))

    @property
    def plain(self) -> dict[str, Any]:
        """All fields of the `LossScale`."""
        return asdict(self.value)

    def scaling(self) -> LossScale:
        """Return the value of the field."""
        found: LossScale = self.value
        return found

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """Refuse closures: the engine can neither unscale nor skip what they compute in a step."""
        del whole
        if use == "closure":
            return "a loss scale cannot unscale or skip what the optimizer computes inside its step"
        return None
