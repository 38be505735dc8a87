"""The format of `.grad` of half parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.recipe.parts.part import Part, needs_half_params

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfstep.recipe.parts.part import Whole


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
        """A half format must be that of the parameters."""
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
        """Gradients."""
        return (self.value,)

    def gradient_format(self) -> str | None:
        """What the field says."""
        return str(self.value)

    def sharding(self, whole: Whole) -> Mapping[str, str]:
        """FSDP2 sums the gradients of half parameters in the format that they are kept in."""
        return {} if whole.get("params") in (None, "fp32") else {"reduce": self.value}
