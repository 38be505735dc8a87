"""The calls of torch functions that the loop itself makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor.actions.scaling import Scaling
from halfstep.doctor.internals import is_tracing
from halfstep.doctor.record.sites import calling_line
from halfstep.doctor.signals.program.calls import Calls
from halfstep.doctor.signals.program.routine import Routine
from halfstep.doctor.signals.signal import Heard, Signal
from halfstep.doctor.signals.values.origins import Origins
from halfstep.doctor.signals.values.own_scales import OwnScales
from halfstep.doctor.tape.listener import NUMBERS, READS, REQUIRES, Call, writes
from halfstep.doctor.tape.tape import Multiplier, autocast_state
from halfstep.doctor.tensors.broadcast import broadcast_of
from halfstep.doctor.tensors.inexact import is_inexact
from halfstep.doctor.tensors.nesting import is_in_graph, tensors_in
from halfstep.doctor.tensors.unfilled import ALLOCATING
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.signals.watched import Watched

_NORMS = ("_foreach_norm", "norm", "linalg_vector_norm", "vector_norm")
_ZEROES = {"zero_", "_foreach_zero_"}
_PRODUCTS = {"mul", "div", "true_divide", "multiply", "divide", "mul_", "div_"}
_DIVIDES = ("div", "true_div")
_RAISES = {"pow", "__pow__", "float_power"}
_POWERS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}
_ROUNDING = 1e-6
_MULTIPLIES = {
    "mul_",
    "div_",
    "__imul__",
    "__idiv__",
    "__itruediv__",
    "_foreach_mul_",
    "_foreach_div_",
}
_LOSSES = (
    *(functional.cross_entropy, functional.nll_loss),
    *(functional.binary_cross_entropy_with_logits, functional.multilabel_soft_margin_loss),
)
_LOSS_MODULES = frozenset(
    {nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss}
)
_ASSIGNS = "__setitem__"
_NOT_ON_TAPE = {"backward", "requires_grad_", "register_hook"}


def _set(tensor: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Assign elements as a loop does, and return the tensor."""
    tensor[index] = value
    return tensor


_set.__name__ = _ASSIGNS


def scores_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the scores that a loss of torch is called with that needs logits or logarithms.

    Args:
        function: A function or a module; other ones have no scores.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
    """
    if function not in _LOSSES and type(function) not in _LOSS_MODULES:
        return None
    scores = args[0] if args else kwargs.get("input")
    return scores if isinstance(scores, torch.Tensor) else None


class Hearing(Signal):
    """Passes each call of a torch function on to the signals that need it."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._grammar, self._tape = watched.grammar, watched.tape
        self._scaling, self._origins = watched[Scaling], watched[Origins]
        self._calls, self._own_scales = watched[Calls], watched[OwnScales]
        self._routine = watched[Routine]
        watched.listener.heard, watched.listener.about = self._heard, self._about

    def _heard(self, call: Call, result: Any) -> None:
        is_outside = self.watched.is_outside()
        if is_outside or (self.watched.guard.is_in_loss and not is_tracing()):
            if self._routine.covers(call.function, self._grammar.made):
                self._routine.leave_out(result)
                self._origins.miss(result)
                return
            with self.watched.guard.own():
                if is_outside:
                    self.take(call, result)
                else:
                    self._take_in_loss(call, result)

    def _about(self, function: Any, name: str, args: tuple[Any, ...]) -> None:
        if name == READS and isinstance(args[0], nn.Parameter):
            return  # A loop may read those of many parameters in each step.
        if self.watched.is_outside() and not self._routine.covers(function, self._grammar.made):
            with self.watched.guard.own():
                if name == READS or name in NUMBERS:
                    self.watched.tell("on_gradient" if name == READS else "on_read", args[0])
                    return
                event = "on_trainable" if name in REQUIRES else "before_write"
                written, values = tensors_in(args[:1]), tensors_in(args[1:])
                self.watched.tell(event, name, written, values)
                if torch.is_grad_enabled() and any(map(is_in_graph, values)):
                    for each in written:
                        self._tape.fill(each, calling_line())

    def take(self, call: Call, result: Any) -> None:
        """Process a call and its result."""
        name = call.function.__name__
        if name in _NOT_ON_TAPE:
            return
        given, made = tensors_in((call.args, call.kwargs)), tensors_in(result)
        self._note_gradients(name, call, given, made)
        self.record(call, given, made)
        self._tell(call, result, given, made)

    def _take_in_loss(self, call: Call, result: Any) -> None:
        """Process a call by a loss that is a module; a replay calls the whole module."""
        self._tell(call, result, tensors_in((call.args, call.kwargs)), tensors_in(result))

    def _tell(
        self, call: Call, result: Any, given: list[torch.Tensor], made: list[torch.Tensor]
    ) -> None:
        """Pass a call on to the signals."""
        name = call.function.__name__
        filled = [] if name in ALLOCATING else made if result is not None else call.args[:1]
        halves = [each for each in tensors_in(filled) if each.dtype in HALVES]
        changed = made if result is not None else given
        self._routine.take(given, changed, self._grammar.made, writes=writes(name) or not made)
        heard = Heard(name, call, given, halves, result)
        self.watched.tell("on_call", heard)

    def _note_gradients(
        self, name: str, call: Call, given: list[torch.Tensor], made: list[torch.Tensor]
    ) -> None:
        """Report writes and reads of gradients to the grammar."""
        if call.function is torch.autograd.grad:
            self._differentiated(call)
        elif name in _ZEROES:
            self._grammar.zeroed_gradients(calling_line(), _written(call))
        elif name in _MULTIPLIES and self._scaling.undoes(_factor(call)):
            self._grammar.divided(calling_line(), _written(call))
        elif name in _MULTIPLIES:
            self._grammar.notice_writes(calling_line(), _written(call), _factor(call))
        elif name == _ASSIGNS or (name.endswith("_") and not name.endswith("__")):
            self._grammar.notice_writes(calling_line(), _written(call), by=name)
        elif name in _NORMS:
            self._grammar.notice_read(calling_line(), given)
        if name not in _ZEROES:
            if name.endswith("_"):
                written = set(map(id, _written(call)))
                given = [each for each in given if id(each) not in written]
            self._grammar.notice_use(given, () if name.endswith("_") else made)

    def record(self, call: Call, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """Count a call, and put it on the tape if a loss may depend on its result.

        Args:
            call: The call.
            given: The tensors in the arguments of the call.
            made: The tensors in the result of the call.
        """
        name = call.function.__name__
        if name == _ASSIGNS and is_in_graph(call.args[0]):
            call, made = Call(_set, call.args, call.kwargs, call.random), [call.args[0]]
        scores = scores_of(call.function, call.args, call.kwargs)
        broadcast = broadcast_of(call.function, given)
        floats = self._calls.count(name, given, made, scores, broadcast)
        needs_gradients = any(map(is_in_graph, floats))
        if not floats:
            if name == _ASSIGNS:
                self._assigned(call.args)
            return
        if not (needs_gradients or self._tape.holds(given)):
            self._origins.note(name, given, floats)
            return
        if needs_gradients:
            self.watched.begin()
        entry = self._tape.open("call", call.function, call.args, call.kwargs)
        entry.autocast, entry.mark, entry.random = autocast_state(), calling_line(), call.random
        scale = self._raised(name, call, self._tape.scale_of(given))
        if name in _PRODUCTS and made and made[0].numel() == 1 and len(call.args) > 1:
            self._note_factor(call, entry.mark)
        self._tape.close(entry, made, scale)

    def _raised(self, name: str, call: Call, scale: Multiplier | None) -> Multiplier | None:
        """Return the power of a loss scale in the result of a call; None for the power of 0.

        Args:
            name: Name of the function.
            call: The call.
            scale: The power in the arguments; that of the first one with a loss scale.
        """
        if scale is None:
            return None
        power, factors = scale.power, call.args[1:2]
        if name in _POWERS:
            power *= _POWERS[name]
        elif name in _RAISES and factors and isinstance(factors[0], int | float):
            power *= factors[0]
        elif name in _PRODUCTS:
            sign = -1 if name.startswith(_DIVIDES) else 1
            powers = [self._power(each) for each in call.args[:2]]
            power = sum(powers[:1]) + sign * sum(powers[1:])
        return Multiplier(scale.scaler, scale.updates, power) if abs(power) > _ROUNDING else None

    def _power(self, factor: Any) -> float:
        known = self._tape.scale_of((factor,)) if isinstance(factor, torch.Tensor) else None
        return self._scaling.power_of(factor) if known is None else known.power

    def record_outside(
        self, name: str, given: list[torch.Tensor], made: list[torch.Tensor]
    ) -> None:
        """Record a module call that is not on the tape.

        Args:
            name: The module's class.
            given: The tensors in its arguments.
            made: The tensors in its result.
        """
        floats = [each for each in made if is_inexact(each)]
        if not any(map(is_in_graph, floats)):
            self._origins.note(name, given, floats)

    def _assigned(self, args: tuple[Any, ...]) -> None:
        tensor, value = args[0], args[-1]
        if not is_in_graph(tensor) and not self._tape.holds((tensor, value)):
            self._origins.assigned(tensor, value if isinstance(value, torch.Tensor) else None)

    def _note_factor(self, call: Call, mark: Mark | None) -> None:
        inverse = call.function.__name__.startswith(_DIVIDES)
        # The argument that requires gradients is the loss; the other one is the factor.
        for at, each in enumerate(call.args[:2]):
            if not (isinstance(each, torch.Tensor) and each.requires_grad) and at >= inverse:
                self._own_scales.take(mark, each, call.args[1 - at], inverse=inverse)

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
