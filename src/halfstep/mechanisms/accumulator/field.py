"""Field `accumulator`: the format in which hardware sums the products of a matrix product."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from halfstep.kernels.hardware import Means
    from halfstep.mechanisms.part import Whole
    from halfstep.mechanisms.technique import Technique


class Accumulator(Part):
    """Sums fp16 products in fp16."""

    field = "accumulator"
    former_field = "accumulation"
    place = 60
    traceable = False
    purpose = "Format in which hardware accumulates fp16 products; fp32 if not set."
    allowed = {"fp16": "the running sum is rounded to fp16 after every 16 products"}

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse a recipe without fp16 products."""
        if "fp16" not in (whole.get("autocast"), whole.get("params")):
            return (
                "accumulator='fp16' sums fp16 products, but nothing computes in fp16; write "
                "autocast='fp16' or params='fp16'"
            )
        return None

    def means(self, device: torch.device) -> Means | None:
        """Return "rehearsed" on devices for which halfstep has kernels, else "refused"."""
        from halfstep.kernels.hardware import emulated

        return emulated(device, "sums of 16 products, each added to an fp16 accumulator")

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Replace the kernels of fp16 products."""
        from halfstep.mechanisms.accumulator.technique import Fp16Accumulation

        del whole, seed
        yield Fp16Accumulation()
