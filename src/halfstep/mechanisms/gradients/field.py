"""Field `gradients`: the format of `.grad` of half parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.part import Part, needs_half_params

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfstep.mechanisms.part import Whole


class Gradients(Part):
    """Keeps gradients of half parameters in fp32, or in the parameters' format."""

    field = "gradients"
    place = 80
    purpose = (
        "Format of `.grad` for half parameters; the parameters' format if not set. If a step "
        "accumulates several backward passes, gradients are fp32 from the second backward pass on."
    )
    allowed = {
        "fp32": "single precision",
        "fp16": "for fp16 parameters",
        "bf16": "for bf16 parameters",
    }

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse a half format other than that of the parameters."""
        if self.value == "fp32":
            return None
        params = whole.get("params")
        if params in (None, "fp32"):
            return needs_half_params(self, whole)
        if self.value != params:
            return (
                f"gradients={self.value!r} is neither fp32 nor the parameters' {params!r}; write "
                "gradients='fp32' or leave it out"
            )
        return None

    def formats(self) -> Iterable[str]:
        """Return the format of gradients."""
        return (self.value,)

    def gradient_format(self) -> str | None:
        """Return the value of the field."""
        return str(self.value)

    def sharding(self, whole: Whole) -> Mapping[str, str]:
        """Return the format in which FSDP2 sums gradients; nothing without half parameters."""
        return {} if whole.get("params") in (None, "fp32") else {"reduce": self.value}
