"""Linear layers, and 1x1 convolutions of channels-last images, that multiply natively."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from halfstep.mechanisms.products.native import WeightOperands, native_product

if TYPE_CHECKING:
    from halfstep.mechanisms.products.quantised import Native


class NativeComputes(NamedTuple):
    """How a layer computes its products natively.

    Attributes:
        native: The product of the hardware.
        operands: The quantised weight; None if the weight is sharded, or computed from others.
    """

    native: Native
    operands: WeightOperands | None

    @classmethod
    def of(cls, layer: nn.Module, native: Native, dtype: torch.dtype | None) -> NativeComputes:
        """Return how `layer` computes; its weight is rounded to `dtype` first, if there is one."""
        weight = dict(layer.named_parameters(recurse=False)).get("weight")
        if weight is None or type(weight) is not nn.Parameter:  # computed, or a DTensor
            return cls(native, None)
        return cls(native, WeightOperands(weight, native, dtype))


def misfit(layer: nn.Module) -> str:
    """Return why a layer cannot multiply natively; "" if it can."""
    if isinstance(layer, nn.Linear):
        return "" if type(layer).forward is nn.Linear.forward else "a forward of its own"
    if not isinstance(layer, nn.Conv2d) or layer.groups != 1 or {*layer.kernel_size} != {1}:
        return "convolutions other than 1x1 have no native product"
    if {*layer.stride} != {1} or layer.padding not in ((0, 0), "valid", "same"):
        return "1x1 convolutions with a stride or padding have no native product"
    return "" if type(layer).forward is nn.Conv2d.forward else "a forward of its own"


class MultipliesNatively(nn.Module):
    """Mixin for a layer, which makes the layer multiply natively if the input has enough samples.

    An input that does not suit takes the layer's own forward.
    """

    _computes: NativeComputes
    weight: torch.Tensor
    bias: torch.Tensor | None

    def forward(self, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Multiply natively, or run the layer's own forward."""
        native, operands = self._computes
        image = isinstance(self, nn.Conv2d)
        channels_last = value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last)
        samples = value.numel() // self.weight.shape[1]
        if samples < native.fewest or (image and not channels_last):
            result: torch.Tensor = super().forward(value, *args, **kwargs)
            return result
        device = value.device.type
        if torch.is_autocast_enabled(device):
            value = value.to(torch.get_autocast_dtype(device))
        features = value.permute(0, 2, 3, 1) if image else value
        weight, bias = self.weight, self.bias
        at_hand = operands.of(weight, value.dtype) if operands is not None else (None, None)
        with torch.autocast(device, enabled=False):
            product = native_product(
                features.reshape(-1, features.shape[-1]), weight.flatten(1), bias, native, at_hand
            )
        # No view, because FSDP2 warns of modules that return one.
        shape = [*features.shape[:-1], product.shape[-1]]
        rows: torch.Tensor = torch.ops.aten._unsafe_view(product, shape)  # noqa: SLF001
        return rows.permute(0, 3, 1, 2) if image else rows
