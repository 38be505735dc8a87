"""The config section of the training loss."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, Strict, field_validator, model_validator

from halfstep.train.config.section import Section

NAMES = ("cross-entropy", "bce", "focal")
_Weight = Annotated[float, Field(ge=0)]


class LossConfig(Section):
    """The training loss. Validation always reports the cross-entropy."""

    name: str = "cross-entropy"
    """The loss: "cross-entropy"; "bce", binary cross-entropy for each class, a common choice with
    mixup; "focal", which gives less weight to images that are already classified well; or your own
    function, "import:package.module:function". It takes logits (N, classes) and labels, either
    int64 (N,) or probabilities (N, classes), and returns the mean loss."""
    class_weights: Annotated[tuple[_Weight, ...], Strict(strict=False)] | None = None
    """Weight of each class, in the order of the classes, for cross-entropy and focal; null weights
    all equally. The loss is divided by the number of images, not by the sum of weights, so that a
    batch can be split."""
    gamma: float = Field(2.0, ge=0, le=10)
    """Exponent of the focal loss: cross-entropy is weighted by (1 - p)^gamma; 0 is
    cross-entropy."""

    @field_validator("name")
    @classmethod
    def _is_a_loss(cls, given: str) -> str:
        if given not in NAMES and not re.fullmatch(r"import:[\w.]+:\w+", given):
            raise ValueError(
                f"{given!r} is not a loss; allowed: {', '.join(NAMES)}, or "
                "import:package.module:function"
            )
        return given

    @model_validator(mode="after")
    def _has_no_idle_field(self) -> LossConfig:
        if self.class_weights is not None and self.name not in {"cross-entropy", "focal"}:
            raise ValueError(f"class_weights have no effect on {self.name}; leave them out")
        if self.class_weights is not None and not sum(self.class_weights):
            raise ValueError("class_weights are all 0, so that nothing would be learned")
        if "gamma" in self.model_fields_set and self.gamma != 2.0 and self.name != "focal":
            raise ValueError(f"gamma has no effect on {self.name}; write name: focal")
        return self
