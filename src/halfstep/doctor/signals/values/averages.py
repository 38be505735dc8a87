"""Detects averages of parameters that a loop keeps in half precision.

A half-precision tensor counts as the average of a parameter if the loop writes it, if it has the
parameter's shape but not its memory, and if its values are close to the parameter's. If an element
differs from the parameter and an update does not change the element, the update was rounded away.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from halfstep.doctor.record import Average
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.signals.frozen import frozen
from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.signals.values.own_updates import OwnUpdateSignal
from halfstep.doctor.tensors.elements import some
from halfstep.doctor.tensors.local import local
from halfstep.formats import format_name
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import torch

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.state.registry import Registry
    from halfstep.doctor.signals.watched import Watched

PARAMETERS = 16
ELEMENTS = 512
LOOKS = 1024
NEAR = 0.5
LAG = 0.03


@dataclass(slots=True)
class Follower:
    """The observations of one average.

    Attributes:
        format: Format of the average.
        mark: The source line that updates the average.
        latest: Sampled elements of the average after the latest update, in fp32.
        updates: How often the average was updated.
        lagging: Number of sampled elements, summed over all updates, that differed from the
            parameter before the update.
        stuck: Number of these elements that the update did not change.
    """

    format: str
    mark: Mark | None
    latest: torch.Tensor
    updates: int = 1
    lagging: int = 0
    stuck: int = 0


class Averages(Signal):
    """Searches the tensors that the loop writes for averages of parameters."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._parameters: dict[tuple[int, ...], list[tuple[str, weakref.ref[torch.Tensor]]]] = {}
        self._known = 0
        self._followers: dict[tuple[str, str], Follower] = {}
        self._looks = 0

    def on_call(self, heard: Heard) -> None:
        """Examine the half-precision tensors that a call has written."""
        if heard.halves and self._concerns(heard.halves):
            self._know(self.watched.registry)
            self._take(heard.name, heard.halves, calling_line())

    def _know(self, registry: Registry) -> None:
        """Select the parameters whose averages are searched for."""
        count = len(registry.models.notes) + len(registry.optimizers.notes)
        if count == self._known:
            return
        self._known = count
        # A second model changes the names that the registry gives; a parameter keeps its first one.
        named = {id(each()): name for alike in self._parameters.values() for name, each in alike}
        self._parameters = {}
        optimizers = registry.optimizers.alive().values()
        moved = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
        chosen = [  # A model that is not trained, such as a teacher, may itself be the average.
            (name, each)
            for name, each in registry.names().items()
            if each.requires_grad and each.numel() > 1 and (not moved or id(each) in moved)
        ]
        stride = max(1, len(chosen) // PARAMETERS)
        for name, each in chosen[::stride][:PARAMETERS]:
            shape = tuple(each.shape)
            first = named.get(id(each), name)
            self._parameters.setdefault(shape, []).append((first, weakref.ref(each)))

    def _concerns(self, halves: list[torch.Tensor]) -> bool:
        """Return whether `take` should examine these tensors: one of them is outside any graph."""
        return self._looks < LOOKS and any(each.is_leaf for each in halves)

    def _take(self, name: str, halves: list[torch.Tensor], mark: Mark | None) -> None:
        """Examine the tensors that a call has written.

        Args:
            name: Name of the called function.
            halves: Half-precision tensors that the call returned or changed in place.
            mark: The source line of the call.
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
        # Weights that the loop updates itself, with what they were in the last backward pass.
        for name, key, its in self.watched[OwnUpdateSignal].given.get(tuple(tensor.shape), []):
            if key == address(tensor) or its.device != tensor.device:
                continue
            distance = float((_some(tensor) - its).norm() / its.norm().clamp(min=1e-12))
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

    def freeze(self) -> dict[str, Any]:
        """Return the averages."""
        found = (
            frozen(Average, each, parameter=name, site=site(each.mark))
            for (_, name), each in self._followers.items()
        )
        return {"averages": tuple(found)}


def _some(tensor: torch.Tensor) -> torch.Tensor:
    return some(tensor, ELEMENTS).float()
