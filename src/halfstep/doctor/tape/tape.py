"""The tape of a step: the loop's calls from a batch to a loss, to be run again.

The tape holds calls at the level of the loop: models, functions of torch between them, loss
scaling, backward passes. Each result has a number, and the tape keeps only weak references to
results. So it keeps only the memory of the batch alive. Arguments from outside the tape are held
with their version counters, so that a later change in place is noticed.
"""

from __future__ import annotations

import random
import weakref
from collections import deque
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from halfstep.doctor.tensors.local import local
from halfstep.doctor.tensors.nesting import exchange, is_in_graph, tensors_in
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES
from halfstep.kernels import cpu_half
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import nn

    from halfstep.doctor.record.sites import Mark

ENTRIES = 4096
CALLS_OF_MODELS = 16
"""More calls without a backward pass, if they are large or many, are those of an evaluation."""
_LARGE, _MANY = 2**26, 256  # bytes of their arguments, and calls


class Multiplier(NamedTuple):
    """Identifies one value of a loss scale.

    Attributes:
        scaler: Number of the scaler.
        updates: Number of updates of all scalers before this value was used.
        power: The power of the loss scale that a value contains, such as 2 after a square.
    """

    scaler: int
    updates: int
    power: float = 1.0


@dataclass(frozen=True, slots=True)
class Slot:
    """A placeholder for a tensor, by number, that an earlier entry makes."""

    number: int


@dataclass(slots=True)
class RandomState:
    """The state of the random generators before a call."""

    cpu: torch.Tensor
    cuda: list[torch.Tensor]
    python: Any = None
    numpy: Any = None

    def restore(self) -> None:
        """Set the generators to this state."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        if self.python is not None:
            random.setstate(self.python)
            np.random.set_state(self.numpy)  # noqa: NPY002  # programs draw from it

    def was_drawn_from(self) -> bool:
        """Return whether Python's or numpy's generator has been used since this state."""
        numpy = np.random.get_state(legacy=False)  # noqa: NPY002  # programs draw from it
        return self.differs(random.getstate(), numpy)

    def differs(self, python: Any, numpy: Any) -> bool:
        """Return whether Python's or numpy's generator had another state."""
        mine, its = self.numpy["state"], numpy["state"]
        return (
            self.python != python
            or mine["pos"] != its["pos"]
            or not np.array_equal(mine["key"], its["key"])
        )


def random_state(*, everything: bool = False) -> RandomState:
    """Return the state of torch's generators, with `everything` also of Python's and numpy's."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    state = RandomState(torch.get_rng_state(), cuda)
    if everything:
        state.python = random.getstate()
        state.numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    return state


class Copies:
    """Copies of tensors, in one buffer for each format and device.

    Args:
        tensors: The tensors.
    """

    __slots__ = ("_alike", "_held")

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._alike: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for each in tensors:
            self._alike.setdefault((each.dtype, each.device), []).append(each)
        self._held = [
            torch.cat([local(each.detach()).reshape(-1) for each in alike])
            for alike in self._alike.values()
        ]

    def restore(self) -> None:
        """Copy the values back, through `.data`, so that the tensors' versions do not change."""
        for alike, held in zip(self._alike.values(), self._held, strict=True):
            mine = [local(each.data) for each in alike]
            parts = held.split([each.numel() for each in mine])
            for each, part in zip(mine, parts, strict=True):
                each.copy_(part.view(each.shape))


@dataclass(slots=True, eq=False)
class Entry:
    """One call of the loop.

    Attributes:
        kind: "call", "module", "scale" or "backward".
        function: The called function or module; None for "scale" and "backward".
        args: The positional arguments, with slots for the results of earlier entries.
        kwargs: The keyword arguments, with such slots.
        results: Numbers of the tensors in the result, in the order of `tensors_in`.
        autocast: Device types with active autocast, and the dtype of each.
        random: State of the random generators before the call; None if it draws no numbers.
        modules: The called module and all of its submodules.
        training: Training mode of each of these modules.
        buffers: Copies, from before the call, of the buffers that the call can change; None for
            none.
        given: Arguments from outside the tape, with their versions.
        mark: The line of the loop that made the call.
        needs: Numbers of the slots in the arguments.
        carried: Arguments outside of an autograd graph that an earlier iteration made, with their
            versions, by slot number. They are used when the calls that made them are forgotten.
        value: The loss scale of a "scale", or the loss of a "backward", at the time of the call.
        like_cuda: Whether the CPU computed half precision inside `halfstep.cpu_half()`.
        has_gradients: Whether a tensor in the result required gradients.
    """

    kind: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[int] = field(default_factory=list)
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    random: RandomState | None = None
    modules: Sequence[nn.Module] = ()
    training: tuple[bool, ...] = ()
    buffers: Copies | None = None
    given: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    mark: Mark | None = None
    needs: set[int] = field(default_factory=set)
    carried: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)
    value: torch.Tensor | None = None
    like_cuda: bool = False
    has_gradients: bool = True


class Tape:
    """The calls of the current iteration and of the previous one.

    Attributes:
        missing: The reason why the current iteration cannot be replayed; "" if it can.
        on_copy: Called with a tensor from outside the tape and the copy that the tape keeps of it.
    """

    def __init__(self) -> None:
        self._segments: deque[list[Entry]] = deque([[]], maxlen=2)
        self._slots: dict[int, tuple[weakref.ref[torch.Tensor], int, Multiplier | None]] = {}
        self._count = 0
        self._first = 0
        self._modules = self._bytes = 0
        self._alive: set[int] = set()
        self.missing = ""
        self.on_copy: Callable[[torch.Tensor, torch.Tensor], None] | None = None

    @property
    def entries(self) -> list[Entry]:
        """The calls of the current iteration."""
        return self._segments[-1]

    def next_iteration(self) -> None:
        """Begin an iteration, and forget the calls of iterations before the previous one."""
        if self.entries:
            self._segments.append([])
            self._first = self._count
            self._modules = self._bytes = 0
            self._alive = {made for each in self._segments for one in each for made in one.results}
            self.missing = ""
            if len(self._slots) > ENTRIES:
                self._slots = {
                    key: value for key, value in self._slots.items() if value[0]() is not None
                }

    def scale_of(self, tensors: Any) -> Multiplier | None:
        """Return the loss scale of the first of these tensors that has one; None for none."""
        for tensor in tensors_in(tensors):
            known = self._known(tensor)
            if known is not None and known[1] is not None:
                return known[1]
        return None

    def half_of(self, tensors: Any) -> str:
        """Return the half format in which these tensors were computed; "" for none.

        It is the format of autocast or of the model's parameters in the latest call that used one.
        """
        wanted = {known[0] for each in tensors_in(tensors) if (known := self._known(each))}
        for entry in reversed([each for segment in self._segments for each in segment]):
            if not wanted & {*entry.results}:
                continue
            wanted |= entry.needs
            formats = [dtype for _, dtype in entry.autocast]
            if entry.kind == "module":
                formats += [each.dtype for each in entry.function.parameters()]
            for dtype in formats:
                if dtype in HALVES:
                    return format_name(dtype)
        return ""

    def holds(self, value: Any) -> bool:
        """Return whether an entry of the tape made any tensor in a value."""
        return any(self._known(tensor) is not None for tensor in tensors_in(value))

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Return whether a call that is or was on the tape made a tensor."""
        entry = self._slots.get(id(tensor))
        return entry is not None and entry[0]() is tensor

    def _known(self, tensor: torch.Tensor) -> tuple[int, Multiplier | None] | None:
        entry = self._slots.get(id(tensor))
        # A leaf that requires gradients counts as given from outside, even if a call returned it.
        if (
            entry is None
            or entry[0]() is not tensor
            or (tensor.requires_grad and not is_in_graph(tensor))
        ):
            return None
        if entry[1] not in self._alive:  # A result of a forgotten call counts as from outside.
            return None
        return entry[1], entry[2]

    def open(
        self, kind: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Entry:
        """Return an entry for the next call; `close` puts it on the tape."""
        given: list[tuple[torch.Tensor, int]] = []
        needs: set[int] = set()
        carried: dict[int, tuple[torch.Tensor, int]] = {}

        def note(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            known = self._known(leaf)
            if known is not None:
                needs.add(known[0])
                if known[0] < self._first and not leaf.requires_grad and not leaf.is_inference():
                    carried[known[0]] = (leaf, leaf._version)
                return Slot(known[0])
            if is_in_graph(leaf):
                self.missing = "a tensor of its graph was made where doctor does not look"
            if leaf.is_inference():
                return leaf
            if leaf.ndim == 0 and not leaf.requires_grad:
                # A loss scale or a count that the program may still change.
                copy = leaf.detach().clone()
                if self.on_copy is not None:
                    self.on_copy(leaf, copy)
                leaf = copy
            given.append((leaf, leaf._version))
            return leaf

        args, kwargs = exchange((args, kwargs), note)
        return Entry(
            kind,
            function,
            args,
            kwargs,
            given=given,
            needs=needs,
            carried=carried,
            like_cuda=cpu_half.in_use(),
        )

    def fill(self, tensor: torch.Tensor, mark: Mark | None) -> None:
        """Put a tensor from outside on the tape that a write in place will join to a graph.

        Args:
            tensor: The tensor, before the write. Those that are on the tape stay as they are.
            mark: The line that writes.
        """
        is_plain = tensor.layout is torch.strided and not tensor.is_inference()
        if tensor.requires_grad or not is_plain or self._known(tensor) or tensor.nbytes > _LARGE:
            return
        entry = self.open("call", torch.clone, (tensor.detach().clone(),), {})
        entry.autocast, entry.mark = autocast_state(), mark
        self.close(entry, tensor, None)

    def close(self, entry: Entry, result: Any, scale: Multiplier | None) -> None:
        """Put an entry on the tape.

        Args:
            entry: The entry from `open`.
            result: The result of the call.
            scale: The loss scale that multiplies the result; None for none.
        """
        tensors = tensors_in(result)
        entry.has_gradients = any(each.requires_grad for each in tensors)
        for tensor in tensors:
            self._slots[id(tensor)] = (weakref.ref(tensor), self._count, scale)
            entry.results.append(self._count)
            self._alive.add(self._count)
            self._count += 1
        self.entries.append(entry)
        if len(self.entries) > ENTRIES:
            self._forget(self.entries[0])
        self._modules += entry.kind == "module"
        self._bytes += _bytes_of(entry)
        is_evaluation = self._bytes > _LARGE or self._modules > _MANY
        if (
            is_evaluation
            and self._modules > CALLS_OF_MODELS
            and not any(each.kind == "backward" for each in self.entries)
        ):
            self._forget(next(each for each in self.entries if each.kind == "module"))

    def _forget(self, entry: Entry) -> None:
        self.entries.remove(entry)
        self._modules -= entry.kind == "module"
        self._bytes -= _bytes_of(entry)
        self._alive.difference_update(entry.results)

    def snapshot(self, *, latest: bool = False) -> list[Entry]:
        """Return the calls that this iteration's backward passes depend on, in order.

        Without a backward, return all calls of the iteration.

        Args:
            latest: Whether only the last backward counts.
        """
        ends = [each for each in self.entries if each.kind == "backward"]
        ends = ends[-1:] if latest else ends
        if not ends:
            return _that_can_be_repeated(self.entries)
        wanted: set[int] = set()
        chosen: list[Entry] = []
        for entry in reversed([each for segment in self._segments for each in segment]):
            mine = entry in ends if entry.kind == "backward" else bool(wanted & {*entry.results})
            if mine:
                chosen.append(entry)
                wanted |= entry.needs
        forgotten = wanted.difference(*(entry.results for entry in chosen))
        if forgotten:
            chosen = [_with_carried(entry, forgotten) for entry in chosen]
        return chosen[::-1]


def _bytes_of(entry: Entry) -> int:
    """Return the size of the tensors that the call of a model gets from outside."""
    if entry.kind != "module":
        return 0
    return sum(each.numel() * each.element_size() for each, _ in entry.given)


def _with_carried(entry: Entry, forgotten: set[int]) -> Entry:
    """Return an entry in which carried tensors replace the slots of forgotten calls."""
    carried = {number: entry.carried[number] for number in forgotten & {*entry.carried}}
    if not carried:
        return entry

    def put(leaf: Any) -> Any:
        is_carried = isinstance(leaf, Slot) and leaf.number in carried
        return carried[leaf.number][0] if is_carried else leaf

    args, kwargs = exchange((entry.args, entry.kwargs), put)
    given = [*entry.given, *carried.values()]
    return replace(entry, args=args, kwargs=kwargs, given=given, needs=entry.needs - {*carried})


def _that_can_be_repeated(entries: list[Entry]) -> list[Entry]:
    """Return the entries that do not depend on a forgotten entry."""
    made: set[int] = set()
    chosen = []
    for entry in entries:
        if entry.needs <= made:
            chosen.append(entry)
            made.update(entry.results)
    return chosen


def given_tensors(entries: list[Entry]) -> Iterator[tuple[Entry, torch.Tensor]]:
    """Yield the tensors from outside the tape: batches, labels, masks, parameters."""
    for entry in entries:
        for tensor, _ in entry.given:
            yield entry, tensor


def changed_since(entries: list[Entry]) -> bool:
    """Return whether an argument of an entry has been changed in place since the call."""
    return any(
        tensor._version != version
        for entry in entries
        for tensor, version in entry.given
        if not tensor.requires_grad
    )


def autocast_state() -> tuple[tuple[str, torch.dtype], ...]:
    """Return the device types with active autocast, and the dtype of each."""
    on_cpu, on_cuda = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    if not (on_cpu or on_cuda):  # The usual case, because this runs at each call of the loop.
        return ()
    on = ("cpu",) * on_cpu + ("cuda",) * on_cuda
    return tuple([(device, torch.get_autocast_dtype(device)) for device in on])
