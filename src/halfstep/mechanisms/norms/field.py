"""Field `norms`: norm layers in fp32 in a model with half parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.mechanisms.part import Part, needs_half_params

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from halfstep.mechanisms.part import Whole


class Norms(Part):
    """Keeps norm layers in fp32."""

    field = "norms"
    place = 20
    purpose = (
        "Format of the parameters, statistics and arithmetic of norm layers in a model with half "
        "parameters."
    )
    allowed = {"fp32": "norm layers stay in fp32"}

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse a recipe without half parameters: its norm layers are in fp32 anyway."""
        return needs_half_params(self, whole)

    def own_formats(self, model: nn.Module) -> Mapping[nn.Module, str]:
        """Return all norm layers of `model`, with their format."""
        from halfstep.mechanisms.params.technique import is_norm

        return {module: self.value for module in model.modules() if is_norm(module)}
