"""What a config may say about several processes that train one model together."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from halfstep.train.config.section import Section


class DistributedConfig(Section):
    """How several processes train one model; a process that is alone takes no notice."""

    strategy: Literal["ddp", "fsdp", "dp"] = "ddp"
    """What each process has: the whole model ("ddp"), or a part of it and of what the optimizer
    keeps ("fsdp"). "dp" is for a process alone, whose batches all its GPUs share."""
    checkpoint_activations: bool = False
    """Under "fsdp", whether each block's activations are computed again in the backward, which
    takes time and saves memory."""
    sync_batchnorm: bool = False
    """Whether BatchNorm sees the batches of all processes as one."""
    timeout: float = Field(600, gt=0)
    """Seconds that processes wait for one of them before they name it and give up."""

    @model_validator(mode="after")
    def _only_blocks_of_fsdp_are_computed_again(self) -> Self:
        if self.checkpoint_activations and self.strategy != "fsdp":
            raise ValueError(
                f"checkpoint_activations is true, but strategy is {self.strategy!r}; write "
                "strategy=fsdp, or checkpoint_activations=false"
            )
        return self
