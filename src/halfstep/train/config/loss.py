"""What a config may say about the loss that is trained."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, Strict, field_validator, model_validator

from halfstep.train.config.section import Section

NAMES = ("cross-entropy", "bce", "focal")
_Weight = Annotated[float, Field(ge=0)]


class LossConfig(Section):
    """What training minimises; validation reports the cross-entropy whatever it is."""

    name: str = "cross-entropy"
    """Which loss: "cross-entropy"; "bce", one yes or no for each class, as often chosen for mixed
    images; "focal", which counts images less that are right already; or
    "import:package.module:function" of your own, from logits (N, classes) and labels, int64 (N,) or
    probabilities (N, classes), to a mean."""
    class_weights: Annotated[tuple[_Weight, ...], Strict(strict=False)] | None = None
    """How much an image of each class counts, in the order of the classes, of cross-entropy and
    focal; null counts all alike. The mean is over images, not over weights, so that a batch may be
    split."""
    gamma: float = Field(2.0, ge=0, le=10)
    """Of focal: the power of the probability that is missing; 0 is cross-entropy."""

    @field_validator("name")
    @classmethod
    def _is_a_loss(cls, given: str) -> str:
        if given not in NAMES and not re.fullmatch(r"import:[\w.]+:\w+", given):
            raise ValueError(
                f"{given!r} is no loss; allowed: {', '.join(NAMES)}, or "
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
