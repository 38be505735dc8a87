"""Second derivatives of several coordinates at once, which hold the mixed ones, too.

`autograd.grad` sums over all elements of its outputs. Of a gradient by the coordinates, of shape
(samples, coordinates), it returns the sums of the rows of the Hessian, and not its diagonal. Some
calls of each line are compared with the diagonal.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_EXAMINED = frozenset({1, 8, 64})
_RECENT, _LINES = 8, 16
_COORDINATES = 8


@dataclass(frozen=True, slots=True)
class MixedDerivative:
    """A line that takes second derivatives of several coordinates at once.

    Attributes:
        coordinates: Number of coordinates.
        share: The size of the mixed derivatives, relative to that of the diagonal, in the call in
            which it is largest.
        site: The line.
    """

    coordinates: int
    share: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class MixedDerivatives:
    """All such lines."""

    signal: ClassVar[str] = "mixed_derivatives"
    lines: tuple[MixedDerivative, ...] = ()


class SecondDerivatives(Signal):
    """Examines some second derivatives of each line."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._first: deque[tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor]]] = deque(
            maxlen=_RECENT
        )
        self._counts: dict[Mark | None, int] = {}
        self._shares: dict[Mark | None, tuple[int, list[torch.Tensor]]] = {}

    def on_call(self, heard: Heard) -> None:
        """Examine a call of `autograd.grad`."""
        if heard.call.function is not torch.autograd.grad or not isinstance(heard.result, tuple):
            return
        given = {**dict(zip(("outputs", "inputs", "weights"), heard.call.args, strict=False))}
        given |= heard.call.kwargs
        outputs, inputs = (tensors_in((given.get(name),)) for name in ("outputs", "inputs"))
        made = tensors_in(heard.result)
        if not (len(outputs) == len(inputs) == len(made) == 1 and given.get("create_graph")):
            return
        gradient = self._summed(outputs[0], inputs[0])
        weights = tensors_in((given.get("grad_outputs", given.get("weights")),))
        if gradient is not None and made[0].shape == gradient.shape:
            self._examine(gradient, inputs[0], made[0], weights)
        self._first.append((weakref.ref(made[0]), weakref.ref(inputs[0])))

    def _summed(self, outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor | None:
        """Return the gradient by the coordinates of which a call takes the derivative."""
        node = outputs.grad_fn
        if outputs.ndim == 0 and type(node).__name__ == "SumBackward0" and node is not None:
            node = node.next_functions[0][0]
        for one, by in self._first:
            gradient = one()
            if gradient is None or by() is not inputs or gradient.grad_fn is None:
                continue
            if gradient.grad_fn is node and gradient.ndim == 2:
                return gradient if 2 <= gradient.shape[1] <= _COORDINATES else None
        return None

    def _examine(
        self,
        gradient: torch.Tensor,
        inputs: torch.Tensor,
        made: torch.Tensor,
        weights: list[torch.Tensor],
    ) -> None:
        mark = calling_line()
        if mark not in self._counts and len(self._counts) >= _LINES:
            return
        self._counts[mark] = self._counts.get(mark, 0) + 1
        if self._counts[mark] not in _EXAMINED:
            return
        with self.watched.guard.own(), torch.enable_grad():
            columns = [
                torch.autograd.grad(column.sum(), inputs, retain_graph=True)[0][:, at]
                for at, column in enumerate(gradient.unbind(1))
            ]
            diagonal = torch.stack(columns, 1)
            share = (made.detach() - diagonal).norm() / diagonal.norm().clamp(min=1e-30)
            for each in weights:  # Other weights are those of a product with the Hessian.
                share = share * (each.detach() == 1).all()
        self._shares.setdefault(mark, (gradient.shape[1], []))[1].append(share.detach())

    def freeze(self) -> dict[str, Any]:
        """Return these lines."""
        found = (
            MixedDerivative(count, max(map(float, shares)), site(mark))
            for mark, (count, shares) in self._shares.items()
        )
        return {MixedDerivatives.signal: MixedDerivatives(tuple(found))}
