"""Recognises the lines that only copy and average weights, tensor by tensor, in every step.

An average of the weights of a large model takes thousands of calls of torch in each step, with
nothing new to learn from most of them. When a line has done only this for some steps, its calls are
heard in a few of the following steps. The same is true of a line that computes many whole numbers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.nesting import is_in_graph
from halfstep.formats.dtypes import HALVES
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfstep.doctor.signals.watched import Watched

CALLS = 16
"""The fewest calls in a step with which a line is a routine."""
STEPS = 4
"""The number of steps after which it is one."""
EVERY = 8
"""The calls of a routine are heard in every eighth step."""
EVERY_WHOLE = 64
"""Those that compute only with whole numbers, such as the places of samples, in every 64th step."""
_MOST = 16384


@dataclass(slots=True)
class _Line:
    """The calls of one function by one instruction of the program.

    Attributes:
        step: The last step in which they were heard.
        calls: How many were heard in this step.
        alike: Whether all of them computed only with weights, and wrote no trained ones.
        steps: The number of successive steps before it with enough calls that were all alike.
        floats: Whether one of them, in any step, computed with floating-point numbers.
    """

    step: int = -1
    calls: int = 0
    alike: bool = True
    steps: int = 0
    floats: bool = False

    @property
    def steps_alike(self) -> int:
        """The number of successive steps up to this one with enough calls, all alike."""
        return self.steps + 1 if self.alike and self.calls >= CALLS else 0

    def begin(self, step: int) -> None:
        """Begin a step in which the calls are heard."""
        self.steps = self.steps_alike
        self.step, self.calls, self.alike = step, 0, True


class Routine(Signal):
    """Tells which calls of the loop need not be heard."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._registry = watched.registry
        self._lines: dict[tuple[int, int, Any], _Line] = {}
        self._line = _Line()
        self._step = -1
        self._weights: set[int] = set()
        self._trained: set[int] = set()
        self._derived: set[int] = set()

    def covers(self, function: Any, step: int) -> bool:
        """Return whether a call need not be heard; called by what `__torch_function__` calls.

        Args:
            function: The called function.
            step: The number of steps so far.
        """
        frame = sys._getframe(3)  # noqa: SLF001  # covers, its caller, __torch_function__, the call
        key = id(frame.f_code), frame.f_lasti, function
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) > _MOST:  # by a program that makes its code as it runs
                self._lines.clear()
            line = self._lines[key] = _Line()
        self._line = line
        if step != line.step:
            if step % (EVERY if line.floats else EVERY_WHOLE) and line.steps_alike >= STEPS:
                return True
            line.begin(step)
        return False

    def leave_out(self, result: Any) -> None:
        """Note the result of a call that is not heard: it is computed from weights, too."""
        if type(result) is torch.Tensor:
            self._derived.add(address(result))

    def take(
        self,
        given: Iterable[torch.Tensor],
        made: Sequence[torch.Tensor],
        step: int,
        *,
        writes: bool,
    ) -> None:
        """Note a call that is heard, after `covers`.

        Args:
            given: The tensors in the arguments.
            made: The tensors that it returned or changed in place.
            step: The number of steps so far.
            writes: Whether it may have changed them in place.
        """
        if step != self._step:
            self._step = step
            if step % EVERY == 0 or step < 2 * STEPS:
                self._find()
        line = self._line
        line.calls += 1
        weights, derived = self._weights, self._derived
        sources = [
            key in weights or key in derived
            for each in given
            if each.is_floating_point() and (key := address(each))
        ]
        alike = bool(sources) and all(sources)
        for each in made:
            if not each.is_floating_point():
                continue
            key = address(each)
            if alike and (each.dtype in HALVES or is_in_graph(each)):
                alike = False
            if key in weights:  # written, or returned as a view of the same memory
                alike = alike and not (writes and key in self._trained)
            elif any(sources):
                derived.add(key)
            else:
                derived.discard(key)
        if sources or any(each.is_floating_point() for each in made):
            line.floats = True
            line.alike = line.alike and alike

    def _find(self) -> None:
        """Find the weights: the parameters and buffers of models, and what optimizers train."""
        if len(self._derived) > _MOST:
            self._derived.clear()
        self._trained = {
            address(each)
            for optimizer in self._registry.optimizers.alive().values()
            for group in optimizer.param_groups
            for each in group["params"]
        }
        self._weights = self._trained | {
            address(each)
            for model in self._registry.models.alive().values()
            for tensors in (model.parameters(), model.buffers())
            for each in tensors
        }
