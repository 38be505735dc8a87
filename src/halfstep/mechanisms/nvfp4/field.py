"""Field `nvfp4`: linear and convolution layers that multiply in NVFP4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.products.part import QuantisedProducts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.mechanisms.part import Whole
    from halfstep.mechanisms.technique import Technique


class Nvfp4(QuantisedProducts):
    """Multiplies blocks of 16 fp4-e2m1 elements, each with an fp8-e4m3 scale."""

    field = "nvfp4"
    place = 54
    purpose = (
        "NVFP4 products. If this field is set, linear and convolution layers multiply blocks of 16 "
        "fp4-e2m1 elements, which share an fp8-e4m3 scale; the first and the last layer do not."
    )
    allowed = {
        "published": "as published for training: gradients are rounded stochastically, and the "
        "weight gradient of linear layers is computed after a random Hadamard transform",
        "nearest": "everything is rounded to nearest, without a transform",
    }
    multiple = 16
    name = "nvfp4"

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Change the layers, except those with a format of their own."""
        from halfstep.mechanisms.nvfp4.technique import Nvfp4Layers

        yield Nvfp4Layers(self.value, own_formats=whole.own_formats, seed=seed)
