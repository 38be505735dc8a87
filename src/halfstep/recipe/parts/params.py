"""The format of the model's parameters and buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.recipe.parts.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from halfstep.kernels.hardware import Means
    from halfstep.recipe.parts.part import Use, Whole
    from halfstep.techniques import Technique


class Params(Part):
    """Casts the model; the inputs of a half one are cast too."""

    field = "params"
    place = 10
    purpose = (
        "Format of the model's parameters and buffers. With a half format, inputs are cast too."
    )
    allowed = {
        "fp32": "single precision",
        "fp16": "half precision, like `model.half()`",
        "bf16": "bfloat16, like `model.bfloat16()`",
    }

    @property
    def _half(self) -> str | None:
        return None if self.value == "fp32" else str(self.value)

    def optimizer_format(self) -> str | None:
        """That of the parameters, unless another field changes it."""
        return self._half

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse autocast over parameters that are half already."""
        autocast = whole.get("autocast")
        if autocast and self._half:
            return (
                f"autocast={autocast!r} casts fp32 parameters, but params={self.value!r} are half "
                "already; write params='fp32' or leave autocast out"
            )
        return None

    def product_format(self) -> tuple[int, str] | None:
        """Half parameters are multiplied as they are."""
        return (1, self._half) if self._half else None

    def formats(self) -> Iterable[str]:
        """Parameters, and what is computed with them."""
        return (self.value,)

    def means(self, device: torch.device) -> Means | None:
        """Half parameters need units for their format."""
        from halfstep.kernels.hardware import half

        return half(self._half, device) if self._half else None

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Cast parameters, and keep gradients and kernels in step with a half format."""
        from halfstep.techniques.cpu_half import CpuHalf
        from halfstep.techniques.gradients import GradientFormat
        from halfstep.techniques.params import ParameterFormat

        del seed
        yield ParameterFormat(
            self.value, own_formats=whole.own_formats, outputs=whole.get("outputs")
        )
        if self._half:
            kept = whole.get("gradients") or self._half
            yield GradientFormat(kept, narrow=whole.get("update") is None)
            yield CpuHalf(autocast=False)

    def gradient_format(self) -> str | None:
        """Gradients of half parameters have the parameters' format."""
        return self._half

    def reduction(self) -> str | None:
        """DDP's buckets have the parameters' format, gradients the engine's: it reduces them."""
        return "own" if self._half else None

    def sharding(self, whole: Whole) -> Mapping[str, str]:
        """Gather parameters in a half format; sharded ones are fp32."""
        del whole
        if self._half is None:
            return {"buffers": self.value}
        return {"compute": self._half, "buffers": self._half, "reduce": self._half}

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """Refuse what needs fp32 parameters."""
        if self._half is None:
            return None
        if use == "fully_shard" and not whole.get("master_weights"):
            return f"{self.value} parameters have no fp32 master weights, and sharded ones are fp32"
        if use == "script_modules":
            return "the inputs of half models are cast by hooks"
        if use == "closure":
            return f"the gradients of {self.value} parameters are not those that the optimizer sees"
        return None
