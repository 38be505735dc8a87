"""Field `reduce`: the format in which processes sum gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfstep.mechanisms.part import Use, Whole


class Reduce(Part):
    """Chooses the format of sums of gradients; the engine's reduction or FSDP2 computes them."""

    field = "reduce"
    place = 115
    purpose = (
        "Format in which processes sum gradients; the gradients' own format if not set. No effect "
        "with one process."
    )
    allowed = {"fp32": "single precision", "fp16": "half precision", "bf16": "bfloat16"}

    def formats(self) -> Iterable[str]:
        """Return the format of sums of gradients."""
        return (self.value,)

    def reduction(self) -> str | None:
        """Return the value of the field."""
        return str(self.value)

    def sharding(self, whole: Whole) -> Mapping[str, str]:
        """Return the format in which FSDP2 sums gradients."""
        del whole
        return {"reduce": self.value}

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """Refuse DataParallel, which sums gradients in their own format."""
        del whole
        if use == "data_parallel":
            return (
                "it chooses the format that gradients are reduced in, which DataParallel sums in "
                "their own"
            )
        return None
