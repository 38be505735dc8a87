"""FP8 layers: linear and convolution layers that multiply on FP8 tensor cores, or as they do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch

from halfstep.mechanisms.float8.gain import Gains
from halfstep.mechanisms.float8.native import NativeFloat8, has_native
from halfstep.mechanisms.float8.quantiser import Float8, RowwiseFloat8
from halfstep.mechanisms.float8.scales import DelayedScales, DynamicScales
from halfstep.mechanisms.products.layers import ProductLayers, widths
from halfstep.mechanisms.products.native_layers import misfit
from halfstep.mechanisms.technique import no_own_formats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.mechanisms.technique import OwnFormats


class Float8Layers(ProductLayers):
    """Makes linear and convolution layers multiply in FP8, if their widths suit tensor cores.

    On a device with FP8 units, layers multiply natively where that is faster; the other layers are
    left out.

    Args:
        scaling: The source of a tensor's scale. "dynamic" and "emulated": its own largest absolute
            value. "rowwise": that of each row. "delayed": the largest absolute value of the last
            `HISTORY` steps, or in the first step its own. "emulated" and "delayed" are emulated on
            every device.
        own_formats: Returns the modules of a model that have a format of their own, and so do not
            become FP8 layers.
        dtype: The dtype that native products round a weight to first; None for the weight's own.
        gains: The gains on the GPU that decides; None for the one that a layer is on.
    """

    multiple = 16  # FP8 tensor cores need widths that are multiples of it (cuBLASLt, section 3.1.3)

    def __init__(
        self,
        scaling: Literal["dynamic", "rowwise", "delayed", "emulated"],
        *,
        own_formats: OwnFormats = no_own_formats,
        dtype: torch.dtype | None = None,
        gains: Gains | None = None,
    ) -> None:
        super().__init__(own_formats=own_formats, dtype=dtype)
        self._known_gains = gains
        self._scaling = scaling
        self._histories: list[DelayedScales] = []

    def quantiser(self, layer: nn.Module) -> Float8 | RowwiseFloat8:
        """Return a quantiser with scales of its own."""
        del layer
        if self._scaling == "rowwise":
            return RowwiseFloat8()
        if self._scaling != "delayed":
            return Float8(DynamicScales())
        self._histories.append(DelayedScales())
        return Float8(self._histories[-1])

    def native(self, layer: nn.Module) -> NativeFloat8 | None:
        """Return the product of the hardware, if the device has one."""
        gains = self._gains(layer)
        if gains is None or self._scaling not in ("dynamic", "rowwise"):
            return None
        return NativeFloat8(self._scaling, gains.fewest(*widths(layer)).samples or 1)

    def native_reason(self, layer: nn.Module) -> str:
        """Return from how many samples on FP8 pays, and how that is known."""
        gains = self._gains(layer)
        assert gains is not None
        return str(gains.fewest(*widths(layer)))

    def left_out(self, layer: nn.Module) -> str:
        """Return why a layer stays as it is; "" if it is taken."""
        reason = super().left_out(layer)
        gains = self._gains(layer)
        if reason or gains is None:
            return reason
        reason = misfit(layer)
        if reason:
            return reason
        fewest = gains.fewest(*widths(layer))
        return "" if fewest.samples is not None else str(fewest)

    def _gains(self, layer: nn.Module) -> Gains | None:
        """Return the gains on the device of a layer; None where FP8 is emulated."""
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        if self._scaling not in ("dynamic", "rowwise"):
            return None
        if self._known_gains is not None or not has_native(weight.device):
            return self._known_gains
        return Gains.of(weight.device)

    def after_step(self, optimizer: Optimizer) -> None:
        """Add the largest values of this step to the histories of delayed scales."""
        super().after_step(optimizer)
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
