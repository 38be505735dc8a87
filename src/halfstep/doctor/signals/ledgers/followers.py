"""Follows the tensors that a loop computes from parameters, such as averages and copies.

A tensor follows the parameters in the steps in which it was computed from them, directly or through
other followers. An average was computed in several steps, a copy in one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.internals import is_functorch_tensor
from halfstep.doctor.tensors.local import local
from halfstep.doctor.tensors.nesting import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.doctor.signals.signal import Heard

_MOST = 4096
_AVERAGE = 2  # steps
_FOREACH = "_foreach_"
_OVERWRITES = {"copy_", "_foreach_copy_", "zero_", "_foreach_zero_", "fill_"}


class Followers:
    """Remembers, for each tensor that follows parameters, the first steps in which it did."""

    def __init__(self) -> None:
        self._parameters: set[int] = set()
        self._steps: dict[int, frozenset[int]] = {}

    def know(self, parameters: set[int]) -> None:
        """Set the addresses of the parameters."""
        self._parameters = parameters

    def is_average(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was computed from parameters in several steps."""
        return len(self._steps.get(address(tensor), ())) >= _AVERAGE

    def follow(self, heard: Heard, step: int) -> None:
        """Note what a call has computed.

        Args:
            heard: The call.
            step: The current step.
        """
        args = heard.call.args
        rest = args[1:] if heard.name in _OVERWRITES else args
        if heard.name.startswith(_FOREACH) and args:
            results = args[0] if heard.result is None else heard.result
            lists = [each for each in rest if isinstance(each, list | tuple)]
            for place, result in enumerate(results):
                given = [each[place] for each in lists if place < len(each)]
                self._note(tensors_in(result), tensors_in(given), step)
            return
        made = tensors_in(args[:1] if heard.result is None else heard.result)
        self._note(made, heard.given if rest is args else tensors_in(rest), step)

    def _note(self, made: Iterable[torch.Tensor], given: Iterable[torch.Tensor], step: int) -> None:
        sources = {address(each) for each in given}
        steps = frozenset[int]().union(*[self._steps.get(each, ()) for each in sources])
        if len(steps) < _AVERAGE and not sources.isdisjoint(self._parameters):
            steps |= {step}
        for each in made:
            key = address(each)
            if not steps:
                self._steps.pop(key, None)
            elif key and key not in self._parameters and not each.requires_grad:
                self._steps[key] = steps
        while len(self._steps) > _MOST:
            del self._steps[next(iter(self._steps))]


def address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's first element; 0 for a tensor without memory of its own."""
    tensor = local(tensor)  # This runs several times for each call of the loop.
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        return 0
    return 0 if is_functorch_tensor(tensor) else int(tensor.data_ptr())
