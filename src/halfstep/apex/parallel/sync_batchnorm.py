"""Apex's `SyncBatchNorm`, with channels last and a ReLU, and the functions that set it up."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from halfstep.layers import sync_batchnorm
from halfstep.layers.sync_batchnorm import convert


class SyncBatchNorm(sync_batchnorm.SyncBatchNorm):
    """Batch norm over the batches of all processes.

    Args:
        num_features: Number of channels.
        eps: Added to the variance.
        momentum: Weight of a batch in the running statistics; None for a cumulative mean.
        affine: Whether the layer has a weight and a bias.
        track_running_stats: Whether the layer keeps running statistics.
        process_group: The processes that share statistics; all processes by default.
        channel_last: Whether the channels are the last dimension of the input.
        fuse_relu: Whether to apply a ReLU to the output.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:
        super().__init__(
            num_features,
            eps,
            momentum,
            affine=affine,
            track_running_stats=track_running_stats,
            process_group=process_group,
        )
        self.channel_last = channel_last
        self.fuse_relu = fuse_relu

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002  (torch's name)
        z: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Normalize `input`, add `z` if given, and apply a ReLU if `fuse_relu` is True."""
        last = self.channel_last and input.ndim > 2
        normalized = super().forward(input.movedim(-1, 1) if last else input)
        if last:
            normalized = normalized.movedim(1, -1)
        if z is not None:
            normalized = normalized + z
        return normalized.relu() if self.fuse_relu else normalized


def convert_syncbn_model(
    module: torch.nn.Module,
    process_group: Any = None,
    channel_last: bool = False,
) -> torch.nn.Module:
    """Replace every batch norm in `module` by a `SyncBatchNorm`, in place, and return the model."""
    return convert(module, process_group, layer=SyncBatchNorm, channel_last=channel_last)


def create_syncbn_process_group(group_size: int) -> dist.ProcessGroup | None:
    """Split the processes into groups of `group_size` neighbours.

    Args:
        group_size: Number of processes per group; 0 for one group of all processes.

    Returns:
        The group of this process; None, which means all processes, if `group_size` is 0.

    Raises:
        AssertionError: If `group_size` does not divide the number of processes.
    """
    if group_size == 0:
        return None
    world_size = dist.get_world_size()
    if world_size < group_size or world_size % group_size:
        raise AssertionError(
            f"group_size is {group_size}; allowed: 0, or a divisor of the {world_size} processes"
        )
    own: dist.ProcessGroup | None
    own, _ = dist.new_subgroups(group_size=group_size)
    return own
