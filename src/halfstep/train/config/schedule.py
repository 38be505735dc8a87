"""What a config may say about its learning rate over time: one class each.

Every schedule may warm up first, over a share of all steps or over a number of epochs.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from halfstep.train.config.section import Section

_Epochs = Annotated[float, Field(gt=0)]


class _Warming(Section):
    """What all schedules share."""

    name: str
    """Which schedule."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Share of all optimizer steps over which the learning rate rises linearly to its value."""
    warmup_epochs: float = Field(0.0, ge=0)
    """The same as a number of epochs; 0 leaves it to `warmup`."""

    @model_validator(mode="after")
    def _warms_up_once(self) -> _Warming:
        default = type(self).model_fields["warmup"].default
        if self.warmup_epochs and self.warmup != default:
            raise ValueError(
                f"warmup is {self.warmup} and warmup_epochs is {self.warmup_epochs}; write one of "
                f"them (warmup: {default} is as if it were not written)"
            )
        return self


class ConstantConfig(_Warming):
    """The same learning rate throughout, after the warm-up."""

    name: Literal["constant"]
    """Which schedule."""


class CosineConfig(_Warming):
    """A linear warm-up, then half a cosine down to `min_lr`."""

    name: Literal["cosine"]
    """Which schedule."""
    min_lr: float = Field(0.0, ge=0)
    """Learning rate at the end."""


class OneCycleConfig(_Warming):
    """Smith's one-cycle policy: a cosine up to the learning rate, a cosine down to almost zero.

    The optimizer's momentum (Adam's first beta) moves the other way, by 0.05 around its own value.
    """

    name: Literal["one-cycle"]
    """Which schedule."""
    warmup: float = Field(0.3, ge=0, lt=1)
    """Share of all optimizer steps over which the learning rate rises."""


class StepConfig(_Warming):
    """The learning rate times `gamma` every so many epochs."""

    name: Literal["step"]
    """Which schedule."""
    every_epochs: _Epochs = 30.0
    """Epochs between two drops, counted from the start of the run."""
    gamma: float = Field(0.1, gt=0, lt=1)
    """What the learning rate is multiplied by."""


class MultiStepConfig(_Warming):
    """The learning rate times `gamma` after each of some epochs."""

    name: Literal["multistep"]
    """Which schedule."""
    milestones: Annotated[tuple[_Epochs, ...], Strict(strict=False)]
    """Finished epochs at which the learning rate drops, counted from the start of the run."""
    gamma: float = Field(0.1, gt=0, lt=1)
    """What the learning rate is multiplied by."""


class PlateauConfig(_Warming):
    """The learning rate times `gamma` when validation has not become better for a while."""

    name: Literal["plateau"]
    """Which schedule."""
    metric: Literal["loss", "accuracy"] = "loss"
    """What of the validation must become better: lower loss or higher accuracy."""
    patience: int = Field(10, ge=0)
    """Validations without a better one that are borne; the one after them drops the rate."""
    gamma: float = Field(0.1, gt=0, lt=1)
    """What the learning rate is multiplied by."""
    threshold: float = Field(1e-4, ge=0)
    """Relative change that counts as better."""
    min_lr: float = Field(0.0, ge=0)
    """Lowest learning rate."""


ScheduleConfig = Annotated[
    ConstantConfig | CosineConfig | OneCycleConfig | StepConfig | MultiStepConfig | PlateauConfig,
    Field(discriminator="name"),
]
