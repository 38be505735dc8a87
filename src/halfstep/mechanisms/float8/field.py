"""Field `float8`: linear and convolution layers that multiply in FP8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.mechanisms.products.part import QuantisedProducts

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn

    from halfstep.kernels.hardware import Means
    from halfstep.mechanisms.part import Count, Datasheet, ExplainedLayer, Part, Samples, Whole
    from halfstep.mechanisms.technique import Technique

_NATIVE = ("dynamic", "rowwise")
"""Values for which a GPU with FP8 units multiplies natively."""


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

        if self.value in _NATIVE and has_native(device):
            return Means("native", "linear layers and 1x1 convolutions, where that is faster")
        return super().means(device)

    def explained(
        self, model: nn.Module, whole: Whole, device: str, samples: Samples = None
    ) -> list[ExplainedLayer] | None:
        """Return which layers are native on a GPU, and from how many samples on."""
        from halfstep.mechanisms.float8.explain import gains_on, native_layers
        from halfstep.mechanisms.float8.technique import Float8Layers

        rehearsed, gains = super().explained(model, whole, "cpu", samples), gains_on(device)
        if rehearsed is None or gains is None or self.value not in _NATIVE:
            return rehearsed
        technique = Float8Layers(self.value, own_formats=whole.own_formats, gains=gains)
        return native_layers(rehearsed, model, technique, gains)

    def untraceable_on(self, gpu: Datasheet) -> str:
        """Return why the GPU emulates FP8, so that no trace on a CPU tells the cost."""
        if self.value not in _NATIVE:
            return super().untraceable_on(gpu)
        if gpu.fp8 is None:
            return (
                "the GPU has no FP8 units, and no trace on a CPU tells what emulation costs there"
            )
        if gpu.architecture.startswith("cdna"):
            return "FP8 is emulated on AMD's GPUs, and no trace on a CPU tells what that costs"
        return ""

    def traced_on(self, gpu: Datasheet, count: Count) -> Part:
        """Return the field on a GPU that is not here."""
        return Float8Elsewhere(self.value, gpu, count)

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Change the layers to FP8, except those with a format of their own."""
        from halfstep.mechanisms.float8.technique import Float8Layers

        del seed
        yield Float8Layers(self.value, own_formats=whole.own_formats, dtype=_rounded_to(whole))


@dataclass(frozen=True)
class Float8Elsewhere(Float8, abstract=True):
    """The field on a GPU that is not here: a step on tensors without values counts its products."""

    gpu: Datasheet
    count: Count

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Change the layers that the GPU would change."""
        from halfstep.mechanisms.float8.counted import CountedLayers

        del seed
        formats, dtype = whole.own_formats, _rounded_to(whole)
        yield CountedLayers(self.value, self.gpu, self.count, own_formats=formats, dtype=dtype)


def _rounded_to(whole: Whole) -> torch.dtype | None:
    """Return the dtype that native products round a weight to first; None for the weight's own."""
    from halfstep.formats import torch_dtype

    autocast = whole.get("autocast")
    return torch_dtype(autocast) if autocast else None
