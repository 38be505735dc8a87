"""What a config may say about several processes that train one model together."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from halfstep.train.config.section import Section


class DistributedConfig(Section):
    """How several processes train one model; a process that is alone takes no notice."""

    strategy: Literal["ddp", "fsdp", "dp"] = "ddp"
    """What each process has: the whole model ("ddp"), or a part of it and of what the optimizer
    keeps ("fsdp"). "dp" is for a process alone, whose batches all its GPUs share."""
    sync_batchnorm: bool = False
    """Whether BatchNorm sees the batches of all processes as one."""
    timeout: float = Field(600, gt=0)
    """Seconds that processes wait for one of them before they name it and give up."""
