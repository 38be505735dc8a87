"""fp32 copies of half parameters that the optimizer owns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.recipe.parts.part import Part, needs_half_params

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.recipe.parts.part import Use, Whole
    from halfstep.techniques import Technique


class MasterWeights(Part):
    """Lets the optimizer update fp32 copies."""

    field = "master_weights"
    place = 70
    purpose = "Whether the optimizer updates fp32 copies of half parameters (master weights)."
    allowed = {
        True: "the optimizer updates fp32 master weights",
        False: "the optimizer updates the half parameters",
    }

    def optimizer_format(self) -> str | None:
        """The optimizer steps the copies."""
        return "fp32" if self.value else None

    def contradiction(self, whole: Whole) -> str | None:
        """Only half parameters have masters."""
        return needs_half_params(self, whole) if self.value else None

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Make the copies before the model is cast."""
        from halfstep.techniques import master

        del seed
        if self.value:
            yield master.MasterWeights(whole.get("params"), own_formats=whole.own_formats)

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """There must be parameters to copy, and they must be the optimizer's own to replace."""
        del whole
        if use == "lazy_parameters" and self.value:
            return "master weights are copied from the parameters"
        if use == "zero_optimizer" and self.value:
            return "the optimizer would hold fp32 master weights, not the parameters dealt out"
        return None
