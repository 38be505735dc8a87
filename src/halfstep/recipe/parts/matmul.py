"""Field `matmul`: how fp32 matrix products and convolutions are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.recipe.parts.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from halfstep.kernels.hardware import Means
    from halfstep.recipe.parts.part import Whole
    from halfstep.techniques import Technique


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
        from halfstep.kernels.hardware import tf32

        return tf32(device) if self.value == "tf32" else None

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Set torch's TF32 switches, or rehearse TF32 on a device without it."""
        from halfstep.techniques.matmul import MatmulPrecision

        del whole, seed
        yield MatmulPrecision(self.value)
