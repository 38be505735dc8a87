"""Field `matmul`: how fp32 matrix products and convolutions are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from halfstep.kernels.hardware import Means
    from halfstep.mechanisms.part import Whole
    from halfstep.mechanisms.technique import Technique


class Matmul(Part):
    """Chooses between IEEE single precision and TF32."""

    field = "matmul"
    place = 40
    purpose = "How fp32 matrix products and convolutions are computed."
    allowed = {
        "ieee": "in IEEE single precision",
        "tf32": "on tensor cores, with inputs rounded to 10 bits of mantissa",
    }

    def product_format(self) -> tuple[int, str] | None:
        """Return tf32, with the lowest precedence: a half format leaves no fp32 products."""
        return (0, "tf32") if self.value == "tf32" else None

    def means(self, device: torch.device) -> Means | None:
        """Return how `device` multiplies in TF32, which needs tensor cores."""
        from halfstep.kernels.hardware import by_capability, emulated

        if self.value != "tf32":
            return None
        how = "inputs rounded to tf32, fp32 kernels"
        if device.type == "cuda":
            return by_capability("tf32", device, how)
        return emulated(device, f"no tf32 units: {how}")

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Set torch's TF32 switches, or rehearse TF32 on a device without it."""
        from halfstep.mechanisms.matmul.technique import MatmulPrecision

        del whole, seed
        yield MatmulPrecision(self.value)
