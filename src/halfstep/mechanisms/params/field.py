"""Field `params`: the format of the model's parameters and buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from halfstep.kernels.hardware import Means
    from halfstep.mechanisms.part import Use, Whole
    from halfstep.mechanisms.technique import Technique


class Params(Part):
    """Casts the model and, if its format is a half format, its inputs."""

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
        """Return the format of half parameters; other fields may override it."""
        return self._half

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse autocast if the parameters are already in a half format."""
        autocast = whole.get("autocast")
        if autocast and self._half:
            return (
                f"autocast={autocast!r} casts fp32 parameters, but params={self.value!r} are half "
                "already; write params='fp32' or leave autocast out"
            )
        return None

    def product_format(self) -> tuple[int, str] | None:
        """Return the format of half parameters, in which they are multiplied."""
        return (1, self._half) if self._half else None

    def formats(self) -> Iterable[str]:
        """Return the format of the parameters, and of what is computed with them."""
        return (self.value,)

    def means(self, device: torch.device) -> Means | None:
        """Return how `device` computes in the half format of the parameters."""
        from halfstep.kernels.hardware import half

        return half(self._half, device) if self._half else None

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Cast parameters; for a half format, also set the format of gradients and CPU kernels."""
        from halfstep.mechanisms.cpu_half import CpuHalf
        from halfstep.mechanisms.gradients.technique import GradientFormat
        from halfstep.mechanisms.params.technique import ParameterFormat

        del seed
        yield ParameterFormat(
            self.value, own_formats=whole.own_formats, outputs=whole.get("outputs")
        )
        if self._half:
            kept = whole.get("gradients") or self._half
            yield GradientFormat(kept, narrow=whole.get("update") is None)
            yield CpuHalf(autocast=False)

    def gradient_format(self) -> str | None:
        """Return the format of half parameters, which their gradients have too."""
        return self._half

    def reduction(self) -> str | None:
        """Return "own" for half parameters: the engine reduces their gradients, not DDP.

        DDP's buckets have the parameters' format, but the engine may keep gradients in fp32.
        """
        return "own" if self._half else None

    def sharding(self, whole: Whole) -> Mapping[str, str]:
        """Return the half format for gathered parameters; the sharded parameters are fp32."""
        del whole
        if self._half is None:
            return {"buffers": self.value}
        return {"compute": self._half, "buffers": self._half, "reduce": self._half}

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """Refuse, for half parameters, the uses that need fp32 parameters."""
        if self._half is None:
            return None
        if use == "fully_shard" and not whole.get("master_weights"):
            return f"{self.value} parameters have no fp32 master weights, and sharded ones are fp32"
        if use == "script_modules":
            return "the inputs of half models are cast by hooks"
        if use == "closure":
            return f"the gradients of {self.value} parameters are not those that the optimizer sees"
        return None
