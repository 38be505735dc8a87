"""Field `float8`: linear and convolution layers that multiply in FP8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.products.part import QuantisedProducts

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn

    from halfstep.kernels.hardware import Means
    from halfstep.mechanisms.part import ExplainedLayer, Samples, Whole
    from halfstep.mechanisms.technique import Technique


class Float8(QuantisedProducts):
    """Multiplies in fp8-e4m3 in the forward pass, and with gradients in fp8-e5m2."""

    field = "float8"
    place = 50
    purpose = (
        "How tensors are scaled for FP8 products. If this field is set, linear and convolution "
        "layers multiply in FP8: fp8-e4m3 in the forward pass, fp8-e5m2 for gradients."
    )
    allowed = {
        "dynamic": "by the tensor's own largest value; native on a GPU with FP8 units",
        "rowwise": "by the largest value of each row, all in fp8-e4m3; native as dynamic is",
        "delayed": "by the tensor's largest value in the last 16 steps, emulated on every device",
        "emulated": "as dynamic, but emulated on every device, so in all layers",
    }

    multiple = 16
    name = "fp8-e4m3"
    family = "fp8"

    def means(self, device: torch.device) -> Means | None:
        """Return "native" on a GPU with FP8 units, unless the value emulates them."""
        from halfstep.kernels.hardware import Means
        from halfstep.mechanisms.float8.native import has_native

        if self.value in ("dynamic", "rowwise") and has_native(device):
            return Means("native", "linear layers and 1x1 convolutions, where that is faster")
        return super().means(device)

    def explained(
        self, model: nn.Module, whole: Whole, device: str, samples: Samples = None
    ) -> list[ExplainedLayer] | None:
        """Return which layers are native on a GPU, and from how many samples on."""
        from halfstep.mechanisms.float8.explain import gains_on, native_layers
        from halfstep.mechanisms.float8.technique import Float8Layers

        rehearsed, gains = super().explained(model, whole, "cpu", samples), gains_on(device)
        if rehearsed is None or gains is None or self.value not in ("dynamic", "rowwise"):
            return rehearsed
        technique = Float8Layers(self.value, own_formats=whole.own_formats, gains=gains)
        return native_layers(rehearsed, model, technique, gains)

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Change the layers to FP8, except those with a format of their own."""
        from halfstep.formats import torch_dtype
        from halfstep.mechanisms.float8.technique import Float8Layers

        del seed
        autocast = whole.get("autocast")
        dtype = torch_dtype(autocast) if autocast else None
        yield Float8Layers(self.value, own_formats=whole.own_formats, dtype=dtype)
