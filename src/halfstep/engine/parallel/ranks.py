"""The processes that train together, and what they must agree on before anything is decided.

Each of them decides by itself whether a step happens; they decide alike because they look at the
same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from torch.optim import Optimizer


class Ranks:
    """The process group of one engine; one process until a group is joined.

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
        """Which of them this process is, from 0."""
        return 0 if self.group is None else self.group.rank()

    def join(self, group: dist.ProcessGroup) -> None:
        """Train together with the processes of `group`.

        Raises:
            ValueError: If the engine trains together with others already.
        """
        if self.group is None:
            self.group = group
        elif _members(group) != _members(self.group):
            raise ValueError(
                f"the models of this engine train on ranks {_members(self.group)} and "
                f"{_members(group)}; allowed: one process group for all that an engine trains"
            )

    def join_those_of(self, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        """Join the groups over which FSDP2 shares parameters and ZeRO shares optimizer state."""
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
        """Return the largest `value` of any process; waits for the device."""
        if self.size == 1:
            return value
        found = torch.tensor(value, device=device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return int(found)

    def mean(self, value: float, device: torch.device) -> float:
        """Return the mean of a number over the processes; waits for the device."""
        total = self.sum(torch.full((), value, dtype=torch.float64, device=device))
        return float(total) / self.size


def is_zero(optimizer: Optimizer) -> bool:
    """Tell whether `optimizer` is a `ZeroRedundancyOptimizer`, without importing it."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


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
