"""Field `mx`: linear and convolution layers that multiply in MXFP8 or MXFP4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.products.part import QuantisedProducts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.mechanisms.part import Whole
    from halfstep.mechanisms.technique import Technique


class Mx(QuantisedProducts):
    """Multiplies blocks of 32 elements, each with a power of two as its scale."""

    field = "mx"
    place = 52
    purpose = (
        "Element format of microscaling (MX) products. If this field is set, linear and "
        "convolution layers multiply blocks of 32 elements, which share a power of two as scale."
    )
    allowed = {
        "fp8": "MXFP8: elements in fp8-e4m3, also those of gradients",
        "fp4": "MXFP4: elements in fp4-e2m1",
    }
    multiple = 32

    @property
    def name(self) -> str:
        """The name of the format: "mxfp8" or "mxfp4"."""
        return f"mx{self.value}"

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Change the layers, except those with a format of their own."""
        from halfstep.mechanisms.microscaling.technique import MxLayers

        del seed
        yield MxLayers(self.value, own_formats=whole.own_formats)
