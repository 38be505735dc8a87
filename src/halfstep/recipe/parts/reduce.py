"""The format in which processes sum gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.recipe.parts.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfstep.recipe.parts.part import Use, Whole


class Reduce(Part):
    """Chooses the format of the sum; the engine's reduction and FSDP2 carry it out."""

    field = "reduce"
    place = 115
    purpose = (
        "Format in which processes sum gradients; the gradients' own format if not set. No effect "
        "with one process."
    )
    allowed = {"fp32": "single precision", "fp16": "half precision", "bf16": "bfloat16"}

    def formats(self) -> Iterable[str]:
        """Sums of gradients."""
        return (self.value,)

    def reduction(self) -> str | None:
        """What the field says."""
        return str(self.value)

    def sharding(self, whole: Whole) -> Mapping[str, str]:
        """FSDP2 sums in the same format."""
        del whole
        return {"reduce": self.value}

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """DataParallel has no sum of its own to choose a format for."""
        del whole
        if use == "data_parallel":
            return (
                "it chooses the format that gradients are reduced in, which DataParallel sums in "
                "their own"
            )
        return None
