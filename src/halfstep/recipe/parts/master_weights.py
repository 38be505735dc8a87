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
    purpose = "Whether the optimizer owns fp32 copies of half parameters."
    allowed = {True: "updates are made in fp32", False: "the optimizer updates half parameters"}

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
        """ZeRO has dealt out the parameters that masters would replace."""
        del whole
        if use == "zero_optimizer" and self.value:
            return "the optimizer would hold fp32 master weights, not the parameters dealt out"
        return None
