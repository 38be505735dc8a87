"""Finds half-precision results that overflow outside autocast and outside any graph.

In evaluation, the loop computes such results from a model's outputs, for example losses and
metrics; between backward and step, it computes them from gradients; and before the forward, it
prepares its inputs with them. A non-finite result is computed again in fp32, which shows whether
its format is the cause. What the loop divides by it becomes 0.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record import HalfOverflow
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.gradients import memories
from halfstep.doctor.tape.tape import autocast_state
from halfstep.doctor.tensors.nesting import exchange, is_in_graph, tensors_in
from halfstep.doctor.tensors.summary import is_finite
from halfstep.doctor.tensors.widen import widened
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

LOOKS = 64  # on an accelerator, where each check waits for the device
TRAINING = 1024  # where gradients are enabled
_SOURCES = 1024  # between two steps
_FOLLOWED = 64  # infinite results, and what is computed from them
_DIVISIONS = 64
_DIVIDES = frozenset({"__truediv__", "div", "divide", "true_divide", "div_", "__itruediv__"})


class Overflows(Signal):
    """Checks half-precision results in evaluation for overflows."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._looks = self._training = 0
        self._found: dict[tuple[str, Mark | None], list[Any]] = {}
        self._sources: dict[int, set[int]] = {}  # of half-precision results, by their addresses
        self._steps = 0
        self._infinite: dict[int, tuple[weakref.ref[torch.Tensor], list[Any]]] = {}
        self._divisions = 0

    def on_call(self, heard: Heard) -> None:
        """Examine a call of the loop, unless it draws random numbers."""
        if self._infinite:
            self._follow(heard)
        call = heard.call
        if call.function is torch.autograd.grad:  # It would need the graph of the same tensors.
            return
        if heard.halves and call.random is None:
            self.take(heard.name, call.function, call.args, call.kwargs, heard.result)
            if not any(map(is_in_graph, heard.halves)):
                self._remember(heard)

    def _remember(self, heard: Heard) -> None:
        """Note from which tensors a call has computed, for what follows until the next step."""
        if self._steps != self.watched.grammar.made:
            self._steps = self.watched.grammar.made
            self._sources.clear()
        if len(self._sources) < _SOURCES:
            sources = memories(heard.given)
            for each in memories(heard.halves):
                self._sources[each] = self._sources.get(each, set()) | sources

    def _follow(self, heard: Heard) -> None:
        """Follow infinite results to a division by them."""
        if heard.name not in _DIVIDES:
            found = next(filter(None, map(self._overflow_of, heard.given)), None)
            made = heard.result
            if found and isinstance(made, torch.Tensor) and made.is_floating_point():
                self._note_infinite(made, found)
            return
        divided, by = heard.call.args[:2] if len(heard.call.args) > 1 else (None, None)
        overflow = self._overflow_of(by)
        if overflow is None or not isinstance(divided, torch.Tensor) or not divided.numel():
            return
        self._divisions += 1
        if self._divisions <= _DIVISIONS and not is_finite(by) and is_finite(divided):
            share = float(divided.detach().abs().max()) / overflow[1]
            overflow[5] = max(overflow[5], share)

    def _note_infinite(self, tensor: torch.Tensor, overflow: list[Any]) -> None:
        if len(self._infinite) >= _FOLLOWED:
            alive = {key: each for key, each in self._infinite.items() if each[0]() is not None}
            self._infinite = alive
        if len(self._infinite) < _FOLLOWED:
            self._infinite[id(tensor)] = weakref.ref(tensor), overflow

    def _overflow_of(self, tensor: Any) -> list[Any] | None:
        """Return the overflow from which a tensor was computed; None if it was from none."""
        reference, overflow = self._infinite.get(id(tensor), (None, None))
        return overflow if reference is not None and reference() is tensor else None

    def take(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, result: Any
    ) -> None:
        """Examine a call and its result.

        Args:
            name: Name of the function, or class of the module.
            function: The function, which can be called again.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
            result: Result of the call.
        """
        if autocast_state():
            return
        results = [each for each in tensors_in(result) if each.dtype in HALVES]
        enabled = torch.is_grad_enabled()
        if enabled and (self._training >= TRAINING or any(map(is_in_graph, results))):
            return
        given = [each for each in tensors_in((args, kwargs)) if each.is_floating_point()]
        if not results or not given or any(each.dtype not in HALVES for each in given):
            return
        self._training += enabled
        if results[0].device.type != "cpu":
            self._looks += 1
            if self._looks > LOOKS:
                return
        if all(map(is_finite, results)) or not all(map(is_finite, given)):
            return
        exact = function(*exchange(args, widened), **exchange(kwargs, widened))
        if not all(map(is_finite, tensors_in(exact))):
            return
        key = name, calling_line()
        if key not in self._found:
            largest = max(float(each.abs().max()) for each in tensors_in(exact) if each.numel())
            ours = not enabled, self._is_of_gradients(given)
            self._found[key] = [format_name(results[0].dtype), largest, 0, *ours, 0.0]
        found = self._found[key]
        found[2] += 1
        found[3] &= not enabled
        for each in results:
            self._note_infinite(each, found)

    def _is_of_gradients(self, given: list[torch.Tensor]) -> bool:
        """Return whether tensors are gradients of parameters, or were computed from some."""
        parameters = self.watched.registry.names().values()
        gradients = memories(each.grad for each in parameters if each.grad is not None)
        new = found = memories(given)
        while new:
            new = {one for each in new for one in self._sources.get(each, ())} - found
            found |= new
        return not found.isdisjoint(gradients)

    def freeze(self) -> dict[str, Any]:
        """Return the overflows."""
        return {
            "overflows": tuple(
                HalfOverflow(name, form, exact, count, site(mark), of_gradients, evaluation, share)
                for (name, mark), found in self._found.items()
                for form, exact, count, evaluation, of_gradients, share in (found,)
            )
        }
