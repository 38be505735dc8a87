"""The complete config of a file: the settings of any run, and what the run trains."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from halfstep.train.config.data import DataConfig, DigitsConfig
from halfstep.train.config.loop import EarlyStoppingConfig, LrScalingConfig
from halfstep.train.config.loss import LossConfig
from halfstep.train.config.model import ModelConfig
from halfstep.train.config.optimizer import OptimizerConfig
from halfstep.train.config.run import RunConfig
from halfstep.train.config.schedule import CosineConfig, OneCycleConfig, ScheduleConfig


class Config(RunConfig):
    """All settings of a run that a file describes."""

    batch_size: int = Field(ge=1)
    """Number of images in one micro-batch of one process."""
    drop_last: bool = True
    """Whether to drop the last training batch of an epoch if it is smaller than the others, because
    a step on a few images would count as much as a full one. The order changes every epoch."""
    loss: LossConfig = LossConfig()
    """The training loss."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing: share of the probability that is spread over all classes, in training."""
    lr_scaling: LrScalingConfig | None = None
    """Scales optimizer.lr with the number of images per step (batch_size times accumulate times
    processes); null does not scale it."""
    early_stopping: EarlyStoppingConfig | None = None
    """When to stop before the last epoch; null never stops early."""
    data: DataConfig = DigitsConfig()
    """The images and labels to learn."""
    model: ModelConfig
    """The classifier."""
    optimizer: OptimizerConfig
    """The optimizer."""
    schedule: ScheduleConfig
    """The learning-rate schedule, stepped once per optimizer step."""

    @model_validator(mode="before")
    @classmethod
    def _reads_a_former_name(cls, values: Any) -> Any:
        """Accept `checkpoint_activations` in `distributed`, its place up to 0.2.0 (FSDP2 only)."""
        match values:
            case {"distributed": {"checkpoint_activations": bool(asked), **rest}, "model": dict(m)}:
                model = {"checkpoint_activations": asked, **m}
                return {**values, "distributed": rest, "model": model}
        return values

    def out_of_memory(self, why: str) -> str:
        """Return a message that says what to try, for a batch that does not fit in memory."""
        splitting = "" if self.auto_microbatch else "auto_microbatch=true, "
        smaller = f"batch_size={max(1, self.batch_size // 2)} accumulate={self.accumulate * 2}"
        narrow = "" if self.build_recipe().autocast else ", recipe=fp16 or recipe=bf16"
        return (
            f"there is not enough memory for batches of {self.batch_size} images ({why}); "
            f"try {splitting}{smaller}{narrow}, or a smaller data.resolution"
        )

    def new_length_changes(self, shorter: int) -> str | None:
        """Return why learning rates of the first `shorter` epochs would change, or None."""
        schedule = self.schedule
        if isinstance(schedule, CosineConfig | OneCycleConfig):
            return f"schedule {schedule.name} is laid out over all epochs"
        if schedule.warmup and not schedule.warmup_epochs:
            return f"schedule.warmup={schedule.warmup:g} is a share of all epochs"
        if schedule.warmup_epochs >= shorter:
            return f"schedule.warmup_epochs={schedule.warmup_epochs:g} is cut off at the last step"
        return None
