"""The format of `torch.autocast`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.recipe.parts.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from halfstep.kernels.hardware import Means
    from halfstep.recipe.parts.part import Use, Whole
    from halfstep.techniques import Technique


class Autocast(Part):
    """Computes matrix products and convolutions of fp32 parameters in a half format."""

    field = "autocast"
    place = 30
    purpose = "Format in which `torch.autocast` computes matrix products and convolutions."
    allowed = {
        "fp16": "half precision, in which small gradients need a loss scale",
        "bf16": "bfloat16, with the range of fp32",
    }

    def product_format(self) -> tuple[int, str] | None:
        """Products are what autocast casts."""
        return 1, self.value

    def forward_format(self) -> str | None:
        """Without the region everything would be computed in fp32."""
        return str(self.value)

    def formats(self) -> Iterable[str]:
        """Products and what they return."""
        return (self.value,)

    def means(self, device: torch.device) -> Means | None:
        """The half format needs units of its own."""
        from halfstep.kernels.hardware import half

        return half(self.value, device)

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Enter autocast around forward passes, with CUDA's dtypes on a CPU."""
        from halfstep.techniques import autocast
        from halfstep.techniques.cpu_half import CpuHalf

        del whole, seed
        yield CpuHalf(autocast=True)
        yield autocast.Autocast(self.value)

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """The threads of torch's DataParallel have autocast on, in fp16 whatever the caller has."""
        del whole
        if use == "replica_threads" and self.value != "fp16":
            return f"it computes in {self.value}, but DataParallel's threads would in fp16"
        return None
