"""Field `float8`: linear and convolution layers that multiply in FP8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from halfstep.kernels.hardware import Means
    from halfstep.mechanisms.part import Whole
    from halfstep.mechanisms.technique import Technique


class Float8(Part):
    """Multiplies in fp8-e4m3 in the forward pass, and with gradients in fp8-e5m2."""

    field = "float8"
    place = 50
    traceable = False
    purpose = (
        "How tensors are scaled for FP8 products. If this field is set, linear and convolution "
        "layers multiply in FP8: fp8-e4m3 in the forward pass, fp8-e5m2 for gradients."
    )
    allowed = {
        "dynamic": "by the tensor's own largest value",
        "delayed": "by the tensor's largest value in the last 16 steps",
    }

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse another `accumulator`: FP8 tensor cores accumulate in fp32."""
        accumulator = whole.get("accumulator")
        if accumulator:
            return (
                f"float8={self.value!r} accumulates in fp32, but accumulator is {accumulator!r}; "
                "leave one of them out"
            )
        return None

    def product_format(self) -> tuple[int, str] | None:
        """Return fp8-e4m3, which overrides the formats of `params` and `autocast`."""
        return 2, "fp8-e4m3"

    def means(self, device: torch.device) -> Means | None:
        """Return "rehearsed", for every device."""
        from halfstep.kernels.hardware import Means

        del device
        return Means(
            "rehearsed",
            "fp32 kernels on fp8 values; layers whose widths are not multiples of 16 are left out",
        )

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Change the layers to FP8, except those with a format of their own."""
        from halfstep.mechanisms.float8.technique import Float8Layers

        del seed
        yield Float8Layers(self.value, own_formats=whole.own_formats)
