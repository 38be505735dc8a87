"""A tensor of a batch that a model gets twice, while nothing reads another one of its shape.

A data set gives two views, and both calls of a model get the first one. The same tensor alone says
nothing: a program may call a model twice for a penalty. So the model must make the same result both
times, the loss depend on both results, and the other view go nowhere.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch

from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from halfstep.doctor.signals.data.batches import Batches

_MOVES = frozenset(
    {"contiguous", "cpu", "cuda", "detach", "double", "float", "half", "pin_memory", "to", "type"}
)
_NODES = 4096
_KEYS = 16
_COPIES = 64
_ROWS = 4


@dataclass(slots=True)
class _Twice:
    steps: int = 0
    is_read: bool = False  # the other view, in one of these steps
    copies: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


class Twice:
    """Follows what the steps that are looked at read of their batches.

    Args:
        batches: Knows the tensors of batches.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._read: set[int] = set()
        self._moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # to another device
        self._waiting: list[tuple[torch.Tensor, _Twice]] = []  # views that nothing has read yet
        self._found: dict[tuple[Any, ...], _Twice] = {}

    def read(self, name: str, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> None:
        """Note what a function or a model is given."""
        if name in _MOVES and len(given) == 1 and len(made) == 1:
            self._moved[id(made[0])] = made[0], self._origin(given[0])
            return
        mine = {id(self._origin(each)) for each in given}
        self._read |= mine
        for view, its in self._waiting:
            its.is_read |= id(view) in mine

    def _origin(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._moved.get(id(tensor))
        return tensor if known is None else known[1]

    def take(
        self,
        key: tuple[Any, ...],
        tensor: torch.Tensor,
        losses: Sequence[torch.Tensor],
        *results: Sequence[torch.Tensor],
    ) -> None:
        """Note that a model gets a tensor twice.

        Args:
            key: The place of the two in a step.
            tensor: The tensor.
            losses: The losses of the step.
            results: What the model makes of it, for each call.
        """
        origin = self._origin(tensor)
        views = [each for each in self._batches.twins(origin) if each.is_floating_point()]
        known = self._found.get(key)
        if known is None and (not views or len(self._found) >= _KEYS):
            return
        found = self._found.setdefault(key, _Twice())
        found.steps += 1
        found.is_read |= not views or any(id(each) in self._read for each in views)
        found.is_read |= not _reach(losses, results)
        self._waiting += [(each, found) for each in views]
        if len(results) > 1 and len(found.copies) < _COPIES:
            for one, other in zip(*results, strict=False):
                found.copies.append((_rows(one), _rows(other)))

    def end(self) -> None:
        """Begin the next step, in which the views of this one may still be read."""
        self._read, self._moved = set(), {}

    def forget(self) -> None:
        """Forget the views of the step before."""
        self._waiting = []

    def found(self) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Yield the places with the number of steps; reads some elements of results."""
        for key, each in self._found.items():
            if not each.is_read and all(torch.equal(a, b) for a, b in each.copies):
                yield key, each.steps


def _reach(losses: Iterable[torch.Tensor], results: Sequence[Sequence[torch.Tensor]]) -> bool:
    """Return whether losses depend on each of some results."""
    wanted = [{each.grad_fn for each in made if each.grad_fn is not None} for made in results]
    nodes = [each.grad_fn for each in losses if each.grad_fn is not None]
    seen = {*nodes}
    while nodes and len(seen) < _NODES:
        for node, _ in nodes.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                nodes.append(node)
    return all(each & seen for each in wanted)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()[:_ROWS].clone()
