"""The config sections of learning-rate schedules: one class for each schedule.

Every schedule can start with a warm-up, over a share of all steps or a number of epochs.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from halfstep.train.config.section import Section

_Epochs = Annotated[float, Field(gt=0)]


class _Warming(Section):
    """Settings that all schedules share."""

    name: str
    """Name of the schedule."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Warmup as a share of all optimizer steps; the learning rate rises linearly during warmup."""
    warmup_epochs: float = Field(0.0, ge=0)
    """Warmup as a number of epochs; 0 uses `warmup` instead."""

    @model_validator(mode="after")
    def _warms_up_once(self) -> _Warming:
        default = type(self).model_fields["warmup"].default
        if self.warmup_epochs and self.warmup != default:
            raise ValueError(
                f"warmup is {self.warmup} and warmup_epochs is {self.warmup_epochs}; write one of "
                f"them (warmup: {default} is the default and counts as not given)"
            )
        return self


class ConstantConfig(_Warming):
    """The same learning rate throughout, after the warm-up."""

    name: Literal["constant"]
    """Name of the schedule."""


class CosineConfig(_Warming):
    """A linear warm-up, then half a cosine down to `min_lr`."""

    name: Literal["cosine"]
    """Name of the schedule."""
    min_lr: float = Field(0.0, ge=0)
    """Learning rate at the end."""


class OneCycleConfig(_Warming):
    """Smith's one-cycle policy: a cosine up to the learning rate, a cosine down to almost zero.

    The optimizer's momentum (Adam's first beta) changes in the opposite direction, by up to 0.05
    around its configured value.
    """

    name: Literal["one-cycle"]
    """Name of the schedule."""
    warmup: float = Field(0.3, ge=0, lt=1)
    """Warmup as a share of all optimizer steps."""


class StepConfig(_Warming):
    """Multiplies the learning rate by `gamma` every `every_epochs` epochs."""

    name: Literal["step"]
    """Name of the schedule."""
    every_epochs: _Epochs = 30.0
    """Number of epochs between two reductions, counted from the start of the run."""
    gamma: float = Field(0.1, gt=0, lt=1)
    """Factor by which the learning rate is multiplied."""


class MultiStepConfig(_Warming):
    """Multiplies the learning rate by `gamma` after each of the given epochs."""

    name: Literal["multistep"]
    """Name of the schedule."""
    milestones: Annotated[tuple[_Epochs, ...], Strict(strict=False)]
    """Numbers of finished epochs after which the learning rate is reduced."""
    gamma: float = Field(0.1, gt=0, lt=1)
    """Factor by which the learning rate is multiplied."""


class PlateauConfig(_Warming):
    """Multiplies the learning rate by `gamma` when validation has stopped improving."""

    name: Literal["plateau"]
    """Name of the schedule."""
    metric: Literal["loss", "accuracy"] = "loss"
    """Validation metric that must improve."""
    patience: int = Field(10, ge=0)
    """Number of validations without improvement to tolerate; the next one reduces the rate."""
    gamma: float = Field(0.1, gt=0, lt=1)
    """Factor by which the learning rate is multiplied."""
    threshold: float = Field(1e-4, ge=0)
    """Smallest relative change that counts as an improvement."""
    min_lr: float = Field(0.0, ge=0)
    """Lowest learning rate."""


ScheduleConfig = Annotated[
    ConstantConfig | CosineConfig | OneCycleConfig | StepConfig | MultiStepConfig | PlateauConfig,
    Field(discriminator="name"),
]
