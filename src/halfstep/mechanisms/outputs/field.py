"""Field `outputs`: the output format of a model with half parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.part import Part, needs_half_params

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.mechanisms.part import Whole


class Outputs(Part):
    """The format to which the technique of `params` casts the outputs of the model."""

    field = "outputs"
    place = 90
    purpose = "Output format of a model with half parameters; the parameters' format if not set."
    allowed = {"fp32": "outputs are cast to single precision"}

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse a recipe without half parameters."""
        return needs_half_params(self, whole)

    def sharding(self, whole: Whole) -> Mapping[str, str]:
        """Return the format to which FSDP2 casts the outputs of the outermost module."""
        del whole
        return {"outputs": self.value}
