"""The processes that train together, and the exchange of numbers between them.

Each process decides by itself whether a step happens. All processes make the same decision, because
they exchange the numbers first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from halfstep.optim.zero import is_zero

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from torch.optim import Optimizer


class Ranks:
    """The process group of one engine; a single process until a group is joined.

    Attributes:
        group: The process group, or None.
    """

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        """Number of processes."""
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        """Rank of this process in the group, from 0."""
        return 0 if self.group is None else self.group.rank()

    def join(self, group: dist.ProcessGroup) -> None:
        """Train together with the processes of `group`.

        Raises:
            ValueError: If the engine already trains together with other processes.
        """
        if self.group is None:
            self.group = group
        elif _members(group) != _members(self.group):
            raise ValueError(
                f"the models of this engine train on ranks {_members(self.group)} and "
                f"{_members(group)}; allowed: one process group for all that an engine trains"
            )

    def join_those_of(self, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        """Join the groups over which FSDP2 shards parameters and ZeRO shards optimizer state."""
        for param in (param for model in models for param in model.parameters()):
            mesh = getattr(param, "device_mesh", None)
            if mesh is not None:
                self.join(mesh.get_group() if mesh.ndim == 1 else _world(mesh.size()))
        for optimizer in optimizers:
            if is_zero(optimizer):
                self.join(optimizer.process_group)  # type: ignore[attr-defined]  # ZeRO has one

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of `values` over the processes, the same bits on each of them."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values, group=self.group)
        return values

    def largest(self, value: int, device: torch.device) -> int:
        """Return the largest `value` over the processes; waits for the device."""
        if self.size == 1:
            return value
        found = torch.tensor(value, device=device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return int(found)

    def mean(self, value: float, device: torch.device) -> float:
        """Return the mean of `value` over the processes; waits for the device."""
        total = self.sum(torch.full((), value, dtype=torch.float64, device=device))
        return float(total) / self.size


def _members(group: dist.ProcessGroup) -> list[int]:
    return dist.get_process_group_ranks(group)


def _world(size: int) -> dist.ProcessGroup:
    world = dist.group.WORLD
    if world is None or world.size() != size:
        raise ValueError(
            f"the model is sharded over a mesh of several dimensions with {size} of "
            f"{dist.get_world_size()} processes; allowed: one dimension, or all processes"
        )
    return world
