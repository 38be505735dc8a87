"""FP8 layers: linear and convolution layers that multiply as FP8 tensor cores do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from halfstep.mechanisms.float8.quantiser import Float8
from halfstep.mechanisms.float8.scales import DelayedScales, DynamicScales
from halfstep.mechanisms.products.layers import ProductLayers
from halfstep.mechanisms.technique import no_own_formats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.mechanisms.technique import OwnFormats


class Float8Layers(ProductLayers):
    """Makes linear and convolution layers multiply in FP8, if their widths suit tensor cores.

    Args:
        scaling: The source of a tensor's scale. "dynamic": its own largest absolute value.
            "delayed": the largest absolute value of the last `HISTORY` steps, or in the first step
            its own.
        own_formats: Returns the modules of a model that have a format of their own, and so do not
            become FP8 layers.
    """

    multiple = 16  # FP8 tensor cores need widths that are multiples of it (cuBLASLt, section 3.1.3)

    def __init__(
        self, scaling: Literal["dynamic", "delayed"], *, own_formats: OwnFormats = no_own_formats
    ) -> None:
        super().__init__(own_formats=own_formats)
        self._scaling = scaling
        self._histories: list[DelayedScales] = []

    def quantiser(self, layer: nn.Module) -> Float8:
        """Return a quantiser with scales of its own."""
        del layer
        if self._scaling == "dynamic":
            return Float8(DynamicScales())
        self._histories.append(DelayedScales())
        return Float8(self._histories[-1])

    def after_step(self, optimizer: Optimizer) -> None:
        """Add the largest values of this step to the histories of delayed scales."""
        del optimizer
        for scales in self._histories:
            scales.advance()

    def state_dict(self) -> dict[str, Any]:
        """Return the histories of delayed scales, one for each layer."""
        return {"histories": [scales.state() for scales in self._histories]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the histories that `state_dict` returned."""
        for scales, saved in zip(self._histories, state["histories"], strict=True):
            scales.load(saved)

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Restore the delayed scales at the end."""
        before = [scales.state() for scales in self._histories]
        try:
            yield
        finally:
            for scales, state in zip(self._histories, before, strict=True):
                scales.load(state)

    def close(self) -> None:
        """Restore the original class of each layer."""
        super().close()
        self._histories.clear()
