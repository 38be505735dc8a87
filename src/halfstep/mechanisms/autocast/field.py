"""Field `autocast`: the format of `torch.autocast`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from halfstep.kernels.hardware import Means
    from halfstep.mechanisms.part import Use, Whole
    from halfstep.mechanisms.technique import Technique


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
        """Return the precedence, 1, and the autocast format, in which products are computed."""
        return 1, self.value

    def forward_format(self) -> str | None:
        """Return the format of autocast."""
        return str(self.value)

    def formats(self) -> Iterable[str]:
        """Return the format of products and of their results."""
        return (self.value,)

    def means(self, device: torch.device) -> Means | None:
        """Return how `device` computes in the half format."""
        from halfstep.kernels.hardware import half

        return half(self.value, device)

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Enter autocast around forward passes; on a CPU, with the operator lists of CUDA."""
        from halfstep.mechanisms.autocast import technique as autocast
        from halfstep.mechanisms.cpu_half import CpuHalf

        del whole, seed
        yield CpuHalf(autocast=True)
        yield autocast.Autocast(self.value)

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """Refuse torch's DataParallel for formats other than fp16, which its threads always use."""
        del whole
        if use == "replica_threads" and self.value != "fp16":
            return f"it computes in {self.value}, but DataParallel's threads would in fp16"
        return None
