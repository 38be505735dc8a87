"""Inputs of a model in one step that hold the same values although they come from different data.

Two views of a batch are augmented with the same random numbers, or a memory keeps the same array
for two matters. In some steps, it is followed from which tensors the loop makes the inputs: those
of one tensor, and of the same random numbers, may be equal on purpose, as for a student and its
teacher. A few elements are copied; they are compared at the end of the program.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import field
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from halfstep.doctor.internals import drops_values, is_functorch_tensor, is_loss
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.data.batches import Batches
from halfstep.doctor.signals.data.twice import Twice
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tape.listener import writes
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

FIRST = 8
_CALLS = 4  # of models in a step
_FOLLOWED = 256  # tensors in a step
_PAIRS = 16
_COPIES = 64
_ROWS = 4
_ELEMENTS = 16  # of a row
_BY_ROWS = frozenset({"__getitem__", "index_select", "take_along_dim", "gather"})
_OF_OBJECTS = frozenset({"tensor", "as_tensor", "from_numpy", "asarray", "frombuffer"})
_JOINS = frozenset({"cat", "concat", "concatenate", "stack", "vstack"})
_PARTS = 8
_RANDOM = ("rand", "normal", "bernoulli", "dropout", "uniform", "multinomial", "poisson")

Origin = frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class EqualPair:
    """Two inputs in the same places of all steps that were looked at, with equal values.

    Attributes:
        joined: Whether the loop joins them to one batch.
        copies: Whether they are given to two models of one kind, of which one is not trained there.
        is_one: Whether both are one tensor of a batch, of which nothing reads another tensor of the
            same shape.
        steps: Number of steps that were looked at.
        other: The line that uses the first one; None if both are inputs of one call.
        site: The line that uses the second one.
    """

    joined: bool
    copies: bool
    is_one: bool
    steps: int
    other: Site | None
    site: Site | None


@dataclass(frozen=True, slots=True)
class EqualInputs:
    """All such pairs."""

    signal: ClassVar[str] = "equal_inputs"
    pairs: tuple[EqualPair, ...] = ()


@dataclass(slots=True, eq=False)
class _Call:
    module: nn.Module
    mark: Mark | None
    trains: bool
    inputs: list[torch.Tensor]
    made: list[torch.Tensor]


@dataclass(slots=True)
class _Pair:
    differs: bool = True  # in the origin of its inputs, in all steps
    drawn: bool = True  # with random numbers, in all steps
    steps: int = 0
    copies: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


class EqualInputSignal(Signal):
    """Looks at the first steps, and at ever fewer later ones; a step ends with its backward."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._batches = watched[Batches]
        self._twice = Twice(self._batches)
        self._steps = 1
        self._looks = True
        self._calls: list[_Call] = []
        self._joined: dict[int, tuple[torch.Tensor, torch.Tensor, Mark | None]] = {}
        self._origins: dict[int, Origin] = {}
        self._kept: list[Any] = []  # so that no other tensor gets the memory of these in the step
        self._draws = 0
        self._changed: Counter[tuple[int, Mark | None]] = Counter()
        self._pairs: dict[tuple[Any, ...], _Pair] = {}
        self._shapes: WeakKeyDictionary[nn.Module, tuple[Any, ...]] = WeakKeyDictionary()

    def on_call(self, heard: Heard) -> None:
        """Follow from which tensors the loop makes another one."""
        if not self._looks:
            return
        if len(self._kept) >= _FOLLOWED:
            self._looks = False
            return
        made = [each for each in tensors_in(heard.result) if _is_plain(each)]
        self._twice.read(heard.name, heard.given, made)
        if writes(heard.name):
            self._change([each for each in heard.given if _is_plain(each)])
        if not made or made[0].requires_grad:
            return
        given = [each for each in heard.given if _is_plain(each)]
        if heard.name in _JOINS:
            self._join(made[0], heard.call.args[0] if heard.call.args else None)
            if made[0].is_floating_point() or len(given) > _PARTS:
                return  # A batch of its own; but of the same prompts and answers, the same text.
        origin = self._origin_of(heard, given, len(made[0]) if made[0].dim() else 0)
        for each in made:
            self._set(each, origin)

    def _origin_of(self, heard: Heard, given: Sequence[torch.Tensor], length: int) -> Origin:
        """Return from which tensors a function makes another one with so many rows."""
        name, origin = heard.name, Origin()
        if name in _OF_OBJECTS and heard.call.args and not given:
            self._kept.append(heard.call.args[0])
            origin = Origin({("object", id(heard.call.args[0]))})
        elif not name.startswith(("rand", "normal")):
            by_rows = name in _BY_ROWS or name in _JOINS
            origin = origin.union(
                *[self._origin(e) for e in given if by_rows or (e.dim() and len(e) == length)]
            )
        if any(each in name for each in _RANDOM):
            self._draws += 1
            origin |= {("draw", self._draws)}
        return origin

    def _change(self, given: Sequence[torch.Tensor]) -> None:
        """Note a line that changes a tensor in place, by numbers that are drawn."""
        if any(map(self._is_drawn, given[1:])):
            self._changed[_memory(given[0]), calling_line()] += 1

    def _is_drawn(self, tensor: torch.Tensor) -> bool:
        return any(kind == "draw" for kind, _ in self._origin(tensor))

    def _join(self, made: torch.Tensor, parts: Any) -> None:
        if isinstance(parts, list | tuple) and len(parts) == 2 and all(map(_is_input, parts)):
            self._joined[id(made)] = parts[0], parts[1], calling_line()
            self._kept += [made, *parts]

    def _set(self, tensor: torch.Tensor, origin: Origin) -> None:
        self._kept.append(tensor)
        self._origins[_memory(tensor)] = origin

    def _origin(self, tensor: torch.Tensor) -> Origin:
        key = _memory(tensor)
        known = self._origins.get(key)
        if known is None:
            self._kept.append(tensor)
            known = self._origins[key] = frozenset({("memory", key)})
        return known

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Note the inputs of a model."""
        if self._looks:
            self._twice.read("", given, made)
        if not self._looks or is_loss(module) or not given:
            return
        plain = [each for each in made if _is_plain(each) and not each.requires_grad]
        if plain and len(self._kept) < _FOLLOWED:
            origin = frozenset[tuple[str, int]]().union(
                *map(self._origin, filter(_is_plain, given))
            )
            for each in plain:
                self._set(each, origin)
        if len(self._calls) > _CALLS or not all(map(_is_plain, given)) or not _is_input(given[0]):
            return
        trains = torch.is_grad_enabled() and any(each.requires_grad for each in made)
        if self._shape(module):
            self._calls.append(_Call(module, calling_line(), trains, [*given], [*made]))

    def _shape(self, module: nn.Module) -> tuple[Any, ...]:
        """Return the shapes of the parameters; none for a module that is no model."""
        known = self._shapes.get(module)
        if known is None:
            known = self._shapes[module] = tuple(each.shape for each in module.parameters())
        return known

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Compare the inputs of the step, and begin the next one."""
        self._twice.forget()
        if self._looks:
            self._compare(losses)
        self._twice.end()
        self._steps += 1
        self._looks = self._steps <= FIRST or is_sampled(self._steps)
        self._calls, self._joined, self._origins, self._kept = [], {}, {}, []
        self._changed.clear()

    def _compare(self, losses: Sequence[torch.Tensor]) -> None:
        for (i, one), (j, other) in combinations(enumerate(self._calls[:_CALLS]), 2):
            if self._is_pair(one, other) and len(one.inputs) == len(other.inputs):
                copies = one.module is not other.module
                key = (i, j, one.mark, other.mark, False, copies)
                self._take(key, one.inputs, other.inputs, self._views(one, other))
                if not copies and _are_same(one.inputs, other.inputs):
                    self._twice.take(key, one.inputs[0], losses, one.made, other.made)
        for number, call in enumerate(self._calls[:_CALLS]):
            inputs = [each for each in call.inputs[:_CALLS] if _is_input(each)]
            for (i, first), (j, second) in combinations(enumerate(inputs), 2):
                key = (i, j, call.mark, None, False, False)
                if call.trains and first is second:
                    self._twice.take(key, first, losses, call.made)
                elif call.trains and first.shape == second.shape:
                    self._take(key, [first], [second])
            parts = self._joined.get(id(call.inputs[0]))
            if parts is not None and call.trains and not _drops(call.module):
                first, second, mark = parts
                key = (number, number, mark, mark, True, False)
                if first is second:
                    self._twice.take(key, first, losses, call.made)
                else:
                    self._take(key, [first], [second])

    def _is_pair(self, one: _Call, other: _Call) -> bool:
        if one.module is other.module:
            return one.trains and other.trains and not _drops(one.module)
        if type(one.module) is not type(other.module) or not (one.mark and other.mark):
            return False
        same_place = one.mark[0] == other.mark[0] and one.mark[2] == other.mark[2]
        is_copy = self._shape(one.module) == self._shape(other.module)
        if not one.inputs[0].is_floating_point():
            return False  # The tokens of a policy and of its reference.
        # A data set may have the same image for a student and for its teacher.
        is_loaded = all(self._batches.batch_of(each.inputs[0]) for each in (one, other))
        return one.trains != other.trains and same_place and is_copy and not is_loaded

    def _take(
        self,
        key: tuple[Any, ...],
        one: list[torch.Tensor],
        other: list[torch.Tensor],
        views: tuple[torch.Tensor, ...] = (),
    ) -> None:
        if key not in self._pairs and len(self._pairs) >= _PAIRS:
            return
        pair = self._pairs.setdefault(key, _Pair())
        pair.steps += 1
        differs = bool(views)
        if views and len(pair.copies) < _COPIES:
            pair.copies.append((_elements(views[0]), _elements(views[1])))
        for a, b in zip(one, other, strict=True):
            if a is b:
                continue
            alike = a.shape == b.shape and a.dtype == b.dtype
            pair.differs &= alike
            origins = self._origin(a), self._origin(b)
            differs |= origins[0] != origins[1] or _are_other_columns(a, b)
            pair.drawn &= all(any(kind == "draw" for kind, _ in each) for each in origins)
            if alike and len(pair.copies) < _COPIES:
                pair.copies.append((_elements(a), _elements(b)))
        pair.differs &= differs

    def _views(self, one: _Call, other: _Call) -> tuple[torch.Tensor, ...]:
        """Return the results for one tensor, if a line has drawn in it twice: for two views."""
        if not _are_same(one.inputs, other.inputs):
            return ()
        memory = _memory(one.inputs[0])
        again = any(its == memory and count > 1 for (its, _), count in self._changed.items())
        return (one.made[0], other.made[0]) if again and one.made and other.made else ()

    def freeze(self) -> dict[str, Any]:
        """Return the pairs whose elements are equal in all steps; reads them."""
        pairs = [
            _pair(key, pair.steps)
            for key, pair in self._pairs.items()
            if pair.differs
            and all(_are_equal(a, b) for a, b in pair.copies)
            and (pair.drawn or (key[3] is not None and _may_differ(key[2], key[3])))
        ]
        pairs += [_pair(key, steps, is_one=True) for key, steps in self._twice.found()]
        return {EqualInputs.signal: EqualInputs(tuple(pairs))}


def _pair(key: tuple[Any, ...], steps: int, *, is_one: bool = False) -> EqualPair:
    _, _, first, second, joined, copies = key
    other = None if second is None else site(first)
    return EqualPair(joined, copies, is_one, steps, other, site(second or first))


def _are_same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _may_differ(first: Mark | None, second: Mark) -> bool:
    return first == second or not _arguments(first) & _arguments(second)


def _arguments(mark: Mark | None) -> set[str]:
    """Return the arguments of the calls in a statement that are no constants."""
    try:
        calls = [
            each for each in ast.walk(ast.parse(statement(mark))) if isinstance(each, ast.Call)
        ]
    except SyntaxError:
        return set()
    return {
        ast.unparse(argument)
        for each in calls
        for argument in each.args
        if not isinstance(argument, ast.Constant)
    }


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _are_other_columns(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are different columns of the same rows, such as of a memory."""
    offset = abs(int(one.storage_offset()) - int(other.storage_offset()))
    if one.dim() < 2 or _memory(one) != _memory(other) or one.stride() != other.stride():
        return False
    return 0 < offset < one.stride()[0]


def _is_plain(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_nested or is_functorch_tensor(tensor))
    )


def _is_input(tensor: Any) -> bool:
    """Return whether a tensor may be a batch of samples with several numbers each."""
    return (
        _is_plain(tensor)
        and tensor.dtype != torch.bool
        and not tensor.requires_grad
        and tensor.dim() > 1
        and len(tensor) > 1
        and tensor.numel() > len(tensor)
    )


def _drops(module: nn.Module) -> bool:
    """Return whether a model makes different results of equal inputs."""
    return any(each.training and drops_values(each) for each in module.modules())


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    rows = tensor.detach()[:_ROWS].flatten(1) if tensor.dim() > 1 else tensor.detach()[:, None]
    some = rows[:, :: max(1, rows.shape[1] // _ELEMENTS)].clone()
    if some.is_floating_point() or some.is_complex():
        return some
    # Two texts may differ in one token only, so each has a part in a sum of integers.
    places = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    return torch.cat([some, (rows.long() * places.square()).sum(1, keepdim=True)], 1)


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether elements are equal, and not all of them the same."""
    return bool(torch.equal(one, other) and (one != one.flatten()[0]).any())
