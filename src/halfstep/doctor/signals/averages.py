"""Averages of parameters that a loop keeps in half precision, recognised by their behaviour.

An average is a half tensor of a parameter's shape that the loop writes and that is near to the
parameter, but not equal to it. If an element differs from the parameter and an update does not
change it, the update was rounded away.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.doctor.record import Average
from halfstep.doctor.record.sites import Mark, site
from halfstep.doctor.signals.facts import parameters_of
from halfstep.doctor.tensors.local import local
from halfstep.formats import format_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from halfstep.doctor.signals.parties import Parties

PARAMETERS = 16
ELEMENTS = 512
LOOKS = 1024
NEAR = 0.5
LAG = 0.03


@dataclass(slots=True)
class Follower:
    """The notes of one average.

    Attributes:
        format: Its format.
        mark: The line that updates it.
        latest: Some of its elements, after the latest update.
        updates: How often it was updated.
        lagging: Elements, over all updates, that differed from the parameter before the update.
        stuck: Number of these that the update did not change.
    """

    format: str
    mark: Mark | None
    latest: torch.Tensor
    updates: int = 1
    lagging: int = 0
    stuck: int = 0


class Averages:
    """Looks for averages among the tensors that the loop writes."""

    def __init__(self) -> None:
        self._parameters: dict[tuple[int, ...], list[tuple[str, weakref.ref[torch.Tensor]]]] = {}
        self._known = 0
        self._followers: dict[tuple[str, str], Follower] = {}
        self._looks = 0

    def know(self, parties: Parties) -> None:
        """Register parameters that may have averages."""
        count = len(parties.models.notes) + len(parties.optimizers.notes)
        if count == self._known:
            return
        self._known = count
        self._parameters = {}
        optimizers = parties.optimizers.alive().values()
        moved = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
        chosen = [  # What is not trained, a teacher that the loop calls say, may be the average.
            (name, each)
            for name, each in parties.names().items()
            if each.requires_grad and each.numel() > 1 and (not moved or id(each) in moved)
        ]
        stride = max(1, len(chosen) // PARAMETERS)
        for name, each in chosen[::stride][:PARAMETERS]:
            shape = tuple(each.shape)
            self._parameters.setdefault(shape, []).append((name, weakref.ref(each)))

    def concerns(self, halves: list[torch.Tensor]) -> bool:
        """Return whether a half tensor outside of a graph is among these."""
        return self._looks < LOOKS and any(each.is_leaf for each in halves)

    def take(self, name: str, halves: list[torch.Tensor], mark: Mark | None) -> None:
        """Examine the tensors that a call has written.

        Args:
            name: Name of the function.
            halves: Half tensors in its result, or changed in place.
            mark: The line of the call.
        """
        for tensor in halves:
            if not tensor.is_leaf:
                continue
            nearest = self._nearest(tensor)
            if nearest is not None:
                self._looks += 1
                self._note(name, *nearest, tensor, mark)

    def _nearest(self, tensor: torch.Tensor) -> tuple[str, torch.Tensor] | None:
        best, found = NEAR, None
        for name, reference in self._parameters.get(tuple(tensor.shape), []):
            parameter = reference()
            if parameter is None or parameter.device != tensor.device:
                continue
            if local(parameter).data_ptr() == local(tensor).data_ptr():
                return None
            mine, its = _some(tensor), _some(parameter)
            distance = float((mine - its).norm() / its.norm().clamp(min=1e-12))
            if distance <= best:
                best, found = distance, (name, its)
        return found

    def _note(
        self,
        function: str,
        name: str,
        parameter: torch.Tensor,
        tensor: torch.Tensor,
        mark: Mark | None,
    ) -> None:
        now = _some(tensor)
        known = self._followers.get((function, name))
        if known is None:
            follower = Follower(format_name(tensor.dtype), mark, now)
            self._followers[function, name] = follower
            return
        lagging = (parameter - known.latest).abs() > LAG * known.latest.abs()
        known.lagging += int(lagging.sum())
        known.stuck += int((lagging & (now == known.latest)).sum())
        known.updates += 1
        known.latest = now

    def freeze(self) -> Iterator[Average]:
        """Yield the averages."""
        for (_, name), each in self._followers.items():
            yield Average(
                parameter=name,
                format=each.format,
                updates=each.updates,
                lagging=each.lagging,
                stuck=each.stuck,
                site=site(each.mark),
            )


def _some(tensor: torch.Tensor) -> torch.Tensor:
    flat = local(tensor).detach().flatten()
    return flat[:: max(1, flat.numel() // ELEMENTS)].float()
