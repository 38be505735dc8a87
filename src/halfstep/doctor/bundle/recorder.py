"""Records the operators of a step while the step is traced."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from halfstep.doctor.bundle.recording import (
    ALIAS,
    OPERATOR,
    RANDOM,
    SCALE,
    Given,
    Instruction,
    Recording,
    encode,
)
from halfstep.doctor.record.sites import site
from halfstep.doctor.tensors.nesting import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halfstep.doctor.bundle.caller import Caller
    from halfstep.doctor.tape.tape import Entry

MOST_BYTES = 2**32
PLAIN = (torch.Tensor, torch.nn.Parameter)


class Recorder:
    """Records one traced step.

    Args:
        name_of: A function that returns the name of a tensor from outside the step; "" without one.

    Attributes:
        recording: The recorded step.
        tensors: Copies of the tensors from outside the step, on the host, by number.
        note: The reason why the step cannot be recorded; "" if it can.
    """

    def __init__(self, name_of: Callable[[torch.Tensor], str]) -> None:
        self._name_of = name_of
        self.recording = Recording()
        self.tensors: dict[int, torch.Tensor] = {}
        self.note = ""
        self._count = 0
        self._bytes = 0
        self._entry: Entry | None = None
        self._callers: dict[Caller, int] = {}
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._memories: dict[int, Memory] = {}

    def begin(self, entry: Entry) -> None:
        """Set the call of the training loop that the next operators belong to."""
        self._entry = entry
        if entry.random is not None and not self.note:
            states = [entry.random.cpu, *entry.random.cuda]
            try:
                numbers = [self._give(each, "random state") for each in states]
            except TypeError as error:
                self.note = str(error)
                return
            self.recording.instructions.append(Instruction(RANDOM, args=list(numbers)))

    def given(self, func: Any, args: Any, kwargs: Any) -> Instruction | None:
        """Record the inputs of an operator before it runs.

        Returns:
            The instruction, to be passed to `made`; None if the step cannot be recorded.
        """
        if self.note:
            return None
        try:
            written = encode(args, self._number_of)
            named = {name: encode(value, self._number_of) for name, value in kwargs.items()}
        except (TypeError, NotImplementedError) as error:
            self.note = str(error)
            return None
        makes_scale = (
            self._entry is not None
            and self._entry.kind == "scale"
            and func is torch.ops.aten.full.default
        )
        return Instruction(SCALE if makes_scale else OPERATOR, str(func), written, named)

    def made(self, instruction: Instruction | None, result: Any, caller: Caller) -> None:
        """Record the results of an operator, and its caller."""
        if instruction is None:
            return
        instruction.results = [self._new(each) for each in tensors_in(result)]
        instruction.caller = self._callers.setdefault(caller, len(self._callers))
        self.recording.instructions.append(instruction)

    def finish(
        self,
        *,
        losses: Iterable[torch.Tensor],
        gradients: dict[str, torch.Tensor],
        ends: Iterable[torch.Tensor],
        scale: float,
    ) -> None:
        """Record the results of the step.

        Args:
            losses: The tensors that the backward passes started from.
            gradients: The gradients, by parameter name.
            ends: The losses and gradients; without a backward, the results of the last call.
            scale: The loss scale; 1 without one.
        """
        if self.note:
            return
        recording = self.recording
        try:
            recording.losses = [self._number_of(each) for each in losses]
            recording.gradients = {name: self._number_of(each) for name, each in gradients.items()}
            recording.ends = [self._number_of(each) for each in ends]
        except TypeError as error:
            self.note = str(error)
        recording.scale = scale
        recording.callers = list(self._callers)
        for caller in recording.callers:
            for mark in (caller.line, caller.user_line):
                if mark is not None and (line := site(mark)) is not None:
                    recording.lines.setdefault(line.file, {})[line.line] = line.text

    def _number_of(self, tensor: torch.Tensor) -> int:
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        if tensor.layout is not torch.strided or type(tensor) not in PLAIN:
            raise TypeError(f"a {type(tensor).__name__} of layout {tensor.layout} was an input")
        memory = self._memories.get(tensor.untyped_storage().data_ptr())
        if memory is not None and memory.holds(tensor):
            # Autograd passes new tensor objects to a backward; they can be views of known memory.
            place = tensor.storage_offset() - memory.offset
            args = [memory.number, list(tensor.shape), list(tensor.stride()), place]
            number = self._new(tensor)
            self.recording.instructions.append(Instruction(ALIAS, args=args, results=[number]))
            return number
        return self._give(tensor, self._name_of(tensor))

    def _give(self, tensor: torch.Tensor, name: str) -> int:
        self._bytes += tensor.nbytes
        if self._bytes > MOST_BYTES:
            raise TypeError(f"the step needs more than {MOST_BYTES >> 30} GiB of tensors")
        number = self._new(tensor)
        self.tensors[number] = tensor.detach().to("cpu", copy=True)
        self.recording.given.append(
            Given(number, name, tuple(tensor.shape), tuple(tensor.stride()), tensor.device.type)
        )
        return number

    def _new(self, tensor: torch.Tensor) -> int:
        number = self._count
        self._count += 1
        self._known[id(tensor)] = (weakref.ref(tensor), number)
        if tensor.layout is torch.strided and tensor.numel():
            place = tensor.untyped_storage().data_ptr()
            if place not in self._memories or self._memories[place].is_gone:
                self._memories[place] = Memory(tensor, number)
        return number


class Memory:
    """The range of memory that a tensor covers; it does not keep the memory alive.

    Args:
        tensor: The first tensor in this memory.
        number: Number of this tensor.
    """

    def __init__(self, tensor: torch.Tensor, number: int) -> None:
        self.number = number
        self.offset = tensor.storage_offset()
        self._end = self.offset + _extent(tensor)
        self._dtype = tensor.dtype
        self._storage = StorageWeakRef(tensor.untyped_storage())

    @property
    def is_gone(self) -> bool:
        """Whether the memory has been freed, so that another tensor may use it now."""
        return bool(self._storage.expired())

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor with the same storage address is a view of this memory."""
        return bool(
            not self.is_gone
            and tensor.dtype == self._dtype
            and self.offset <= tensor.storage_offset()
            and tensor.storage_offset() + _extent(tensor) <= self._end
        )


def _extent(tensor: torch.Tensor) -> int:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum(int((size - 1) * stride) for size, stride in pairs)
