"""Processes the calls of torch functions that the loop itself makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor.record.sites import calling_line
from halfstep.doctor.signals.calls import Calls
from halfstep.doctor.signals.own_scales import OwnScales
from halfstep.doctor.signals.signal import Heard
from halfstep.doctor.tape.listener import writes
from halfstep.doctor.tape.tape import autocast_state
from halfstep.doctor.tensors.broadcast import broadcast_of
from halfstep.doctor.tensors.nesting import is_in_graph, tensors_in
from halfstep.doctor.tensors.unfilled import ALLOCATING
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.signals.bus import Bus
    from halfstep.doctor.signals.origins import Origins
    from halfstep.doctor.signals.routine import Routine
    from halfstep.doctor.tape.listener import Call
    from halfstep.doctor.watching.scaling import Scaling

_NORMS = ("_foreach_norm", "norm", "linalg_vector_norm", "vector_norm")
_ZEROES = {"zero_", "_foreach_zero_"}
_PRODUCTS = {"mul", "div", "true_divide", "multiply", "divide", "mul_", "div_"}
_MULTIPLIES = {
    "mul_",
    "div_",
    "__imul__",
    "__idiv__",
    "__itruediv__",
    "_foreach_mul_",
    "_foreach_div_",
}
_LOSSES = (functional.cross_entropy, functional.nll_loss)
_LOSS_MODULES = frozenset({nn.CrossEntropyLoss, nn.NLLLoss})
_NOT_ON_TAPE = {"backward", "requires_grad_", "register_hook"}


def scores_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the scores that torch's cross entropy or negative log likelihood is called with.

    Args:
        function: A function or a module; other ones have no scores.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
    """
    if function not in _LOSSES and type(function) not in _LOSS_MODULES:
        return None
    scores = args[0] if args else kwargs.get("input")
    return scores if isinstance(scores, torch.Tensor) else None


class Hearing:
    """Passes each call of a torch function on to the signals that need it.

    Args:
        bus: Passes the calls on.
        scaling: Provides the loss scale.
        origins: Receives calls outside the autograd graph.
        routine: Recognises the calls that are alike in all steps.
    """

    def __init__(self, bus: Bus, scaling: Scaling, origins: Origins, routine: Routine) -> None:
        self._bus, self._grammar, self._tape = bus, bus.grammar, bus.tape
        self._scaling = scaling
        self._origins = origins
        self._routine = routine

    def take(self, call: Call, result: Any) -> None:
        """Process a call and its result."""
        name = call.function.__name__
        if name in _NOT_ON_TAPE:
            return
        given, made = tensors_in((call.args, call.kwargs)), tensors_in(result)
        self._note_gradients(name, call, given)
        self.record(call, given, made)
        filled = [] if name in ALLOCATING else made if result is not None else call.args[:1]
        halves = [each for each in tensors_in(filled) if each.dtype in HALVES]
        changed = made if result is not None else given
        self._routine.take(given, changed, self._grammar.made, writes=writes(name) or not made)
        heard = Heard(name, call, given, halves, result)
        for hears in self._bus.hear["on_call"]:
            hears(heard)

    def _note_gradients(self, name: str, call: Call, given: list[torch.Tensor]) -> None:
        """Report writes and reads of gradients to the grammar."""
        if call.function is torch.autograd.grad:
            self._differentiated(call)
        elif name in _ZEROES:
            self._grammar.zeroed_gradients(calling_line(), _written(call))
        elif name in _MULTIPLIES and self._scaling.undoes(_factor(call)):
            self._grammar.divided(calling_line(), _written(call))
        elif name in _MULTIPLIES:
            self._grammar.notice_writes(calling_line(), _written(call), _factor(call))
        elif name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            self._grammar.notice_writes(calling_line(), _written(call), by=name)
        elif name in _NORMS:
            self._grammar.notice_read(calling_line(), given)
        if name not in _ZEROES:
            if name.endswith("_"):
                written = set(map(id, _written(call)))
                given = [each for each in given if id(each) not in written]
            self._grammar.notice_use(given)

    def record(self, call: Call, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """Count a call, and put it on the tape if a loss may depend on its result.

        Args:
            call: The call.
            given: The tensors in the arguments of the call.
            made: The tensors in the result of the call.
        """
        name = call.function.__name__
        scores = scores_of(call.function, call.args, call.kwargs)
        broadcast = broadcast_of(call.function, given)
        floats = self._bus[Calls].count(name, given, made, scores, broadcast)
        needs_gradients = any(map(is_in_graph, floats))
        if not floats:
            if name == "__setitem__":
                self._assigned(call.args)
            return
        if not (needs_gradients or self._tape.holds(given)):
            self._origins.note(name, given, floats)
            return
        if needs_gradients:
            self._bus.begin()
        entry = self._tape.open("call", call.function, call.args, call.kwargs)
        entry.autocast, entry.mark, entry.random = autocast_state(), calling_line(), call.random
        scale = self._tape.scale_of(given)
        if name in _PRODUCTS:
            if any(map(self._scaling.undoes, call.args)):
                scale = None
            if made and made[0].numel() == 1 and len(call.args) > 1:
                self._note_factor(call, entry.mark)
        self._tape.close(entry, made, scale)

    def record_outside(
        self, name: str, given: list[torch.Tensor], made: list[torch.Tensor]
    ) -> None:
        """Record a module call that is not on the tape.

        Args:
            name: The module's class.
            given: The tensors in its arguments.
            made: The tensors in its result.
        """
        floats = [each for each in made if each.is_floating_point()]
        if not any(map(is_in_graph, floats)):
            self._origins.note(name, given, floats)

    def _assigned(self, args: tuple[Any, ...]) -> None:
        tensor, value = args[0], args[-1]
        if not is_in_graph(tensor) and not self._tape.holds((tensor, value)):
            self._origins.assigned(tensor, value if isinstance(value, torch.Tensor) else None)

    def _note_factor(self, call: Call, mark: Mark | None) -> None:
        inverse = call.function.__name__.startswith(("div", "true_div"))
        # The argument that requires gradients is the loss; the other one is the factor.
        for each in call.args[1:2] if inverse else call.args[:2]:
            if not (isinstance(each, torch.Tensor) and each.requires_grad):
                self._bus[OwnScales].take(mark, each, inverse=inverse)

    def _differentiated(self, call: Call) -> None:
        outputs = call.args[0] if call.args else call.kwargs.get("outputs")
        self._grammar.add(
            "grad",
            calling_line(),
            scaled=self._tape.scale_of(outputs) is not None,
            create_graph=bool(call.kwargs.get("create_graph", False)),
            half=self._tape.half_of(outputs),
        )


def _factor(call: Call) -> float | torch.Tensor | None:
    factor = call.args[1] if len(call.args) > 1 else call.kwargs.get("other")
    return factor if isinstance(factor, int | float | torch.Tensor) else None


def _written(call: Call) -> list[torch.Tensor]:
    return [each for each in tensors_in(call.args[:1]) if each.layout is torch.strided]
