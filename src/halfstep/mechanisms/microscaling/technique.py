"""MX layers: linear and convolution layers that multiply blocks, as the fields `mx` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.microscaling.quantiser import SIZE, Microscaling
from halfstep.mechanisms.products.layers import ProductLayers
from halfstep.mechanisms.technique import no_own_formats

if TYPE_CHECKING:
    from torch import nn

    from halfstep.mechanisms.microscaling.quantiser import Elements
    from halfstep.mechanisms.technique import OwnFormats


class MxLayers(ProductLayers):
    """Makes linear and convolution layers multiply in MXFP8 or MXFP4.

    Args:
        elements: The format of elements: "fp8" or "fp4".
        own_formats: Returns the modules of a model that have a format of their own.
    """

    multiple = SIZE

    def __init__(self, elements: Elements, *, own_formats: OwnFormats = no_own_formats) -> None:
        super().__init__(own_formats=own_formats)
        self._quantiser = Microscaling(elements)

    def quantiser(self, layer: nn.Module) -> Microscaling:
        """Return the quantiser that all layers share: it has no state."""
        del layer
        return self._quantiser
