"""Runs the forward of a step with other inputs, and compares the results of all operators.

The modules are in evaluation mode, so that neither batch norm nor dropout connects samples. No
gradients are computed. The runs must call the same operators: if the path through the program
depends on the input, as in a router, there is no comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.doctor.bundle.caller import Caller
from halfstep.doctor.internals import (
    calling_frame,
    changes_inputs,
    current_node,
    tensors_written,
)
from halfstep.doctor.record.sites import Mark, lines_below
from halfstep.doctor.replay.memory import storage_key
from halfstep.doctor.signals.values.contracts import library_call
from halfstep.doctor.tape.tape import Slot
from halfstep.doctor.tensors.nesting import exchange, tensors_in
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.doctor.tape.tape import Entry

Trains = Literal["nothing", "own", "all"]
"""Which modules are in training mode: those that torch does not define are the program's own."""
Change = tuple[int, "Callable[[tuple[Any, ...]], tuple[Any, ...]]"]
"""The number of an operator, and a function that returns other arguments for it."""
BYTES = 2**29
_ROUNDING = 1e-4
_MASK = 1e4
"""From this size on, a number may be that of a mask, beside which all others would be small."""
OUTSIDE = -1


class ForwardsDifferError(Exception):
    """Two runs call different operators."""


@dataclass(slots=True, eq=False)
class Operator:
    """An operator that has run.

    Attributes:
        number: Its number in the run.
        name: Its name, without the overload.
        args: Its arguments.
        given: The tensors in its arguments.
        made: The tensors in its result.
        values: Copies of them.
        makers: Number of the operator that made each of `given`; `OUTSIDE` for none.
        caller: Its caller.
        needed: Whether each of `given` requires gradients.
        limits: The rounding errors of each of `values`, once a run was compared.
    """

    number: int
    name: str
    args: tuple[Any, ...]
    given: list[torch.Tensor]
    made: list[torch.Tensor]
    values: list[torch.Tensor]
    makers: list[int]
    caller: Caller
    needed: list[bool] = field(default_factory=list)
    limits: list[float | None] = field(default_factory=list)


class Differences(Sequence[list[torch.Tensor]]):
    """Where the results of each operator differ from those of another run.

    They are compared when they are asked for: most are not.

    Args:
        operators: The operators of the other run.
    """

    def __init__(self, operators: list[Operator]) -> None:
        self._operators = operators
        # Held, so that no other tensor gets their memory, and so that autograd detaches a result to
        # which something else refers, as the first run does.
        self._made: list[list[torch.Tensor]] = []
        self._masks: dict[int, list[torch.Tensor]] = {}
        self._in_memory: defaultdict[int, list[int]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, number: Any) -> Any:
        """Return a mask for each tensor in the result of an operator."""
        if number not in self._masks:
            if not 0 <= number < len(self._made):
                raise IndexError(number)
            made, other = self._made[number], self._operators[number]
            if not other.limits:
                other.limits = [*map(_limit, other.values)]
            self._masks[number] = [*map(_difference, made, other.values, other.limits)]
        return self._masks[number]

    def add(self, name: str, made: list[torch.Tensor]) -> int:
        """Add the results of the next operator.

        Raises:
            ForwardsDifferError: If the other run called another one.
        """
        number = len(self._made)
        other = self._operators[number] if number < len(self._operators) else None
        if (
            other is None
            or other.name != name
            or [each.shape for each in made] != [each.shape for each in other.values]
        ):
            raise ForwardsDifferError
        self._made.append(made)
        for each in made:
            self._in_memory[storage_key(each)].append(number)
        return number

    def compare(self, written: list[torch.Tensor]) -> None:
        """Compare the results in memory that is about to be written to."""
        for each in written:
            for number in self._in_memory.pop(storage_key(each), ()):
                self[number]


class Forward(TorchDispatchMode):
    """Records the operators of a forward, or compares them with those of another run.

    Args:
        where: A function that returns path and class of the module that runs.
        boundary: The file that replays the program's calls; see `lines_below`.
        base: The run to compare with; None to record one.
        change: What one of the operators is given in place of its arguments.

    Attributes:
        operators: The recorded operators.
        changed: Where the results of each operator differ from those of `base`.
        inputs: The tensors without gradients that models are called with, by key: the identity of a
            tensor from outside the step, or the slot of one that the loop has computed.
        calls: The calls inside of modules of library functions that need values of some kind: name,
            arguments, line, and whether gradients are computed.
    """

    def __init__(
        self,
        where: Callable[[], tuple[str, str]],
        boundary: str,
        base: Forward | None = None,
        change: Change | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own, without annotations
        self._where, self._boundary, self._base = where, boundary, base
        self._change = change
        self.operators: list[Operator] = []
        self.changed = Differences(base.operators if base else [])
        self.inputs: dict[Any, torch.Tensor] = {}
        self.calls: list[tuple[str, dict[str, Any], Mark | None, bool]] = []
        self._mark: Mark | None = None
        self._makers: dict[Any, int] = {}
        self._bytes = 0

    def begin(self, entry: Entry) -> None:
        """Set the call of the training loop that the next operators belong to."""
        self._mark = entry.mark

    def note_inputs(self, entry: Entry, fill: Callable[[Any], Any]) -> None:
        """Note the inputs of a model.

        Args:
            entry: The call of the model.
            fill: Returns the value of an argument of the entry.
        """
        if next(entry.function.parameters(), None) is None:  # A loss has no inputs but results.
            return

        def note(leaf: Any) -> Any:
            value = fill(leaf)
            if isinstance(value, torch.Tensor) and not value.requires_grad and value.ndim:
                self.inputs[leaf if isinstance(leaf, Slot) else id(leaf)] = value
            return value

        exchange((entry.args, entry.kwargs), note)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        needed = [each.requires_grad for each in tensors_in((args, kwargs))]
        is_compared = self._base is not None
        if is_compared and changes_inputs(func):
            self.changed.compare(tensors_written(func, args, kwargs))
        if self._change is not None and func.namespace == "aten":
            number, others = self._change
            args = others(args) if number == len(self.changed) else args
        result = func(*args, **kwargs)
        if func.namespace == "aten":
            name = str(func.overloadpacket).removeprefix("aten.")
            if not is_compared:
                self._record(name, args, kwargs, result, needed)
            else:
                number = self.changed.add(name, tensors_in(result))
                if changes_inputs(func):  # It may be written to after the run, as buffers are.
                    self.changed[number]
        return result

    def _record(self, name: str, args: Any, kwargs: Any, result: Any, needed: list[bool]) -> None:
        given, made = tensors_in((args, kwargs)), tensors_in(result)
        self._bytes += sum(each.nbytes for each in made)
        if self._bytes > BYTES:
            raise MemoryError("the results of the forward are too large to be kept")
        number = len(self.operators)
        line, user_line = lines_below(self._boundary, self._mark)
        where = self._where()
        if user_line != self._mark or where[1]:
            self._note_call(user_line)
        node = current_node()
        caller = Caller(*where, line, user_line, node="" if node is None else node.name())
        makers = [self.maker(each) for each in given]
        values = [each.detach().clone() for each in made]
        self.operators.append(
            Operator(number, name, args, given, made, values, makers, caller, needed)
        )
        for each in made:
            self._makers[_place(each)] = self._makers[storage_key(each)] = number

    def _note_call(self, mark: Mark | None) -> None:
        """Note the library function that calls an operator, once for all of its operators."""
        called = library_call(calling_frame())
        if called is None:
            return
        name, arguments = called
        last = self.calls[-1] if self.calls else None
        is_same = last is not None and last[0] == name and last[2] == mark
        if not (is_same and last is not None and _first(last[1]) is _first(arguments)):
            self.calls.append((name, arguments, mark, torch.is_grad_enabled()))

    def maker(self, tensor: torch.Tensor) -> int:
        """Return the number of the operator that made a tensor; `OUTSIDE` for none."""
        exact = self._makers.get(_place(tensor))
        return self._makers.get(storage_key(tensor), OUTSIDE) if exact is None else exact


def _first(arguments: dict[str, Any]) -> Any:
    return next(iter(arguments.values()), None)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    return storage_key(tensor), tensor.shape, tensor.stride(), tensor.storage_offset()


def _limit(value: torch.Tensor) -> float | None:
    """Return the rounding errors of a result; None for one with NaN, or without numbers."""
    if not value.numel() or value.layout is not torch.strided or not value.is_floating_point():
        return None
    sizes = value.abs()
    largest = float(sizes.max())
    if not largest < _MASK:  # Infinity in a mask says nothing of the other elements.
        largest = float(torch.where(sizes < _MASK, sizes, 0).max())
    return None if bool(value.isnan().any()) else _ROUNDING * largest


def _difference(one: torch.Tensor, other: torch.Tensor, limit: float | None) -> torch.Tensor:
    """Return where two tensors differ by more than rounding errors."""
    one = one.detach()
    if not one.numel() or one.layout is not torch.strided or torch.equal(one, other):
        return torch.zeros((), dtype=torch.bool, device=one.device).expand(one.shape)
    if not one.is_floating_point():
        return one != other
    if limit is None:
        return ((one - other).abs() > 0) | (one.isfinite() != other.isfinite())
    # The difference of two infinities is NaN.
    return ((one - other).abs() <= limit).logical_not_().logical_and_(one != other)
