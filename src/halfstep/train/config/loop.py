"""What a config may say about the course of a run: averages, stopping, checkpoints, processes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from halfstep.train.config.section import Section


class LrScalingConfig(Section):
    """The learning rate follows the number of images in an optimizer step.

    Goyal et al., "Accurate, Large Minibatch SGD" (arXiv:1706.02677), section 2.1, for the linear
    rule; the square root keeps the variance of an update (Krizhevsky, arXiv:1404.5997).
    """

    rule: Literal["linear", "sqrt"] = "linear"
    """Multiply optimizer.lr by the ratio of batch sizes ("linear") or by its root ("sqrt")."""
    base_batch: int = Field(256, ge=1)
    """Images in an optimizer step that optimizer.lr was chosen for."""

    def factor(self, images: int) -> float:
        """Return what the learning rate is multiplied by for steps of this many images."""
        ratio = images / self.base_batch
        return ratio if self.rule == "linear" else ratio**0.5


class AverageConfig(Section):
    """An exponential moving average of the weights, which validation then uses."""

    decay: float = Field(0.999, gt=0, lt=1)
    """Weight of the past at each optimizer step."""


class EarlyStoppingConfig(Section):
    """The run ends when validation has stopped getting better."""

    metric: Literal["accuracy", "loss"] = "accuracy"
    """Which figure of the validation must get better."""
    patience: int = Field(ge=1)
    """Validations in a row without a better one after which the run ends."""


class CheckpointsConfig(Section):
    """Which states of a run are kept to go on from; the best one is kept besides."""

    every_steps: int | None = Field(None, ge=1)
    """Optimizer steps between two checkpoints within an epoch; null saves after epochs only."""
    keep: int = Field(2, ge=1)
    """How many of the newest are kept; of two or more, a damaged one costs only what came after the
    one before."""


class DistributedConfig(Section):
    """How several processes train one model; a process that is alone takes no notice."""

    strategy: Literal["ddp", "fsdp", "dp"] = "ddp"
    """What each process has: the whole model ("ddp"), or a part of it and of what the optimizer
    keeps ("fsdp"). "dp" is for a process alone, whose batches all its GPUs share."""
    sync_batchnorm: bool = False
    """Whether BatchNorm sees the batches of all processes as one."""
    timeout: float = Field(600, gt=0)
    """Seconds that processes wait for one of them before they name it and give up."""
