"""Field `master_weights`: the exact values of half parameters, which the optimizer updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.part import Part, needs_half_params

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.mechanisms.part import Use, Whole
    from halfstep.mechanisms.technique import Technique


class MasterWeights(Part):
    """Lets the optimizer update the exact values of half parameters."""

    field = "master_weights"
    place = 70
    purpose = "Whether the optimizer updates more exact values of half parameters (master weights)."
    allowed = {
        True: "the optimizer updates fp32 master weights",
        False: "the optimizer updates the half parameters",
        "split16": "fp32 values, of which a bf16 parameter is the upper half; 2 bytes less",
        "split8": "values of 16 significant bits, the upper ones in a bf16 parameter; 3 bytes less",
    }

    def optimizer_format(self) -> str | None:
        """Return fp32, the format of the copies that the optimizer updates."""
        return "fp32" if self.value else None

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse a recipe without half parameters: only these have master weights."""
        if self.value in _SPLIT and whole.get("params") == "fp16":
            return (
                f"master_weights={self.value!r} adds the bits that bf16 lacks of fp32, but params "
                "is 'fp16', which has another exponent: below 2^-14 its numbers are subnormal and "
                "lack more bits, the smaller the more; write params='bf16', or master_weights=True"
            )
        return needs_half_params(self, whole) if self.value else None

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Copy the parameters to fp32 before the model is cast."""
        from halfstep.mechanisms.master_weights import technique as master
        from halfstep.mechanisms.master_weights.split import SplitMasters

        del seed
        if self.value in _SPLIT:
            yield SplitMasters(self.value, own_formats=whole.own_formats)
        elif self.value:
            yield master.MasterWeights(whole.get("params"), own_formats=whole.own_formats)

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """Refuse lazy parameters, which have no values to copy, and ZeRO's parameter lists."""
        del whole
        if use == "lazy_parameters" and self.value:
            return "master weights are copied from the parameters"
        if use == "fully_shard" and self.value in _SPLIT:
            return "FSDP2 keeps fp32 shards itself; write master_weights=True"
        if use == "zero_optimizer" and self.value:
            return "the optimizer would hold fp32 master weights, not the parameters dealt out"
        return None


_SPLIT = ("split16", "split8")
