"""Config sections about the course of a run: averages, stopping, checkpoints, processes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from halfstep.train.config.section import Section


class LrScalingConfig(Section):
    """Scaling of the learning rate with the number of images in an optimizer step.

    Goyal et al., "Accurate, Large Minibatch SGD" (arXiv:1706.02677), section 2.1, for the linear
    rule; the square root keeps the variance of an update (Krizhevsky, arXiv:1404.5997).
    """

    rule: Literal["linear", "sqrt"] = "linear"
    """Multiply optimizer.lr by the ratio of batch sizes ("linear") or by its square root
    ("sqrt")."""
    base_batch: int = Field(256, ge=1)
    """Number of images per optimizer step for which optimizer.lr was chosen."""

    def factor(self, images: int) -> float:
        """Return the factor of the learning rate for steps of this many images."""
        ratio = images / self.base_batch
        return ratio if self.rule == "linear" else ratio**0.5


class AverageConfig(Section):
    """An exponential moving average of the weights, which validation then uses."""

    decay: float = Field(0.999, gt=0, lt=1)
    """Decay of the moving average at each optimizer step."""


class StoppingConfig(Section):
    """The run ends when the metric that chooses the best validation has stopped improving."""

    patience: int = Field(ge=1)
    """Number of consecutive validations without improvement after which the run ends."""


class EarlyStoppingConfig(Section):
    """The run ends when validation has stopped improving."""

    metric: Literal["accuracy", "loss"] = "accuracy"
    """Validation metric that must improve."""
    patience: int = Field(ge=1)
    """Number of consecutive validations without improvement after which the run ends."""


class CheckpointsConfig(Section):
    """Which checkpoints of a run are kept, in addition to the best one."""

    every_steps: int | None = Field(None, ge=1)
    """Number of optimizer steps between checkpoints within an epoch; null saves after epochs
    only."""
    keep: int = Field(2, ge=1)
    """Number of newest checkpoints to keep. With two or more, the run can resume from the previous
    one if the newest is damaged."""


class DistributedConfig(Section):
    """How several processes train one model; no effect on a single process."""

    strategy: Literal["ddp", "fsdp", "dp"] = "ddp"
    """Distribution of the model: "ddp" keeps a copy in each process; "fsdp" shards parameters and
    optimizer state over the processes; "dp" splits each batch over all GPUs of a single process."""
    sync_batchnorm: bool = False
    """Whether BatchNorm synchronizes its statistics across processes."""
    timeout: float = Field(600, gt=0)
    """Timeout in seconds for a process that does not respond; the others then name it and exit."""
