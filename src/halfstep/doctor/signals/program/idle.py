"""Values of a step that reach nothing: what a program computes or loads, and never reads.

The source shows which names nothing reads. Sampled steps show which of these lines run between two
steps of an optimizer, and what the names hold: only a tensor with a row for each sample counts as
a field of a batch. Lines inside of models are those of the operators in the replay of the last
step.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections import deque
from collections.abc import Mapping
from inspect import CO_OPTIMIZED
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

import torch

from halfstep.doctor.internals import calling_frame
from halfstep.doctor.record.sites import Mark, Site, is_of_user, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.program.effects import (
    DROPPED,
    FIELD,
    PARAMETER,
    UNCALLED,
    VALUE,
    idle_in,
)
from halfstep.doctor.signals.program.mistyped import mistyped
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tensors.nesting import is_in_graph
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.signals.program.effects import Idle
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_Value = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""A value that nothing reads, and the tensors beside it."""
_HELD = 4  # values of a name
_ELEMENTS = 2**18  # of a value that is held
_LINES = 4096
ATTRIBUTE = "attribute"
LENGTHS, MASK, FLAGS, WHOLE, REAL = "lengths", "mask", "flags", "whole numbers", "numbers"


@dataclass(frozen=True, slots=True)
class Unused:
    """A value that nothing reads, or a statement without an effect, that runs in the training.

    Attributes:
        kind: The kind of `Idle`, or "attribute" for one that is set on a parameter or an optimizer
            and has no effect.
        name: The name of the value, of the operator whose result is dropped, or of the method.
        function: The function around it; "" for none.
        fellows: The names beside it that are read.
        given: For a dropped result, the variable to which it can be assigned; for an attribute,
            the one that has an effect.
        is_overwritten: Whether the name gets another value before anything could read it.
        holds: What a field or a parameter holds: "lengths" of padded samples, a "mask" of padding,
            "flags" that are 0 or 1, other "whole numbers", or other "numbers".
        shape: Shape of the value.
        partner: The name of what the lengths or the mask belong to.
        is_drawn_again: Whether a step draws whole numbers of the same shape anew.
        statement: The statement.
        site: Its line.
    """

    kind: str
    name: str
    function: str
    fellows: tuple[str, ...]
    given: tuple[str, ...]
    is_overwritten: bool
    holds: str
    shape: tuple[int, ...]
    partner: str
    is_drawn_again: bool
    statement: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class UnusedValues:
    """All such values and statements."""

    signal: ClassVar[str] = "unused"
    found: tuple[Unused, ...] = ()


class UnusedSignal(Signal):
    """Looks at the lines that run in sampled steps, and at the names that nothing reads."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._steps = 0
        self._on = False
        self._lines: dict[tuple[str, int], set[str]] = {}  # functions of torch that they call
        self._held: dict[tuple[str, Idle], deque[_Value]] = {}
        self._seen: dict[tuple[str, Idle], int] = {}  # the step in which each was last held
        self._draws: set[int] = set()  # numbers of elements of whole numbers that are drawn
        self._open: dict[int, tuple[weakref.ref[torch.Tensor], tuple[str, Idle]]] = {}
        self._elsewhere: set[tuple[str, Idle]] = set()  # values that functions of torch get later

    # ------------------------------------------------------------ what runs

    def on_call(self, heard: Heard) -> None:
        """Note the lines of a call of torch."""
        if self._on:
            self._look(heard.name)
            for each in heard.given if self._open else ():
                known = self._open.get(id(each))
                if known is not None and known[0]() is each:
                    self._elsewhere.add(known[1])
            if heard.name in {"multinomial", "bernoulli"} and isinstance(
                heard.result, torch.Tensor
            ):
                self._draws.add(heard.result.numel())

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Note the lines of a call of a model."""
        del module, given, made
        if self._on:
            self._look("")

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Note the line that calls a model without gradients."""
        del module
        if mark is not None:
            self._note(mark[0], mark[1], "")

    def on_given(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the arguments of a module's forward()."""
        function = inspect.unwrap(type(module).forward)
        code = getattr(function, "__code__", None)
        if not self._on or code is None or not is_of_user(code.co_filename):
            return
        names = code.co_varnames[1 : code.co_argcount]
        values = dict(zip(names, args, strict=False)) | dict(kwargs)
        for each in idle_in(code.co_filename):
            if each.kind == PARAMETER and each.first == code.co_firstlineno:
                self._hold(code.co_filename, each, values)

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Look at the names of the functions that run."""
        del optimizer, number, mark
        if self._on:
            self._look("")
        self._open = {}
        self._steps += 1
        self._on = is_sampled(self._steps)

    def ran(self, marks: Iterable[tuple[Mark | None, str]]) -> None:
        """Note lines that called operators in a replay of the last step."""
        for mark, name in marks:
            if mark is not None:
                self._note(mark[0], mark[1], name)

    def _look(self, name: str) -> None:
        frame: FrameType | None = calling_frame()
        while frame is not None:
            file = frame.f_code.co_filename
            if is_of_user(file):
                self._note(file, frame.f_lineno, name)
                mine = [
                    each
                    for each in idle_in(file)
                    if each.kind in {FIELD, PARAMETER} and each.first == _first_line(frame)
                ]
                if mine:
                    values = frame.f_locals
                    for each in mine:
                        self._hold(file, each, values)
                    _forget(frame, values)
            frame = frame.f_back

    def _note(self, file: str, line: int, name: str) -> None:
        if len(self._lines) < _LINES:
            self._lines.setdefault((file, line), set()).add(name)

    def _hold(self, file: str, idle: Idle, values: Mapping[str, Any]) -> None:
        """Keep a copy of a value with a row for each sample, and of its fellows."""
        value, key = values.get(idle.name), (file, idle)
        if not _is_data(value) or self._seen.get(key) == self._steps:
            return
        others = {name: values.get(name) for name in idle.fellows}
        if idle.of:
            batch = values.get(idle.of)
            others = dict(batch) if isinstance(batch, Mapping) else {}
        fellows = {
            name: each
            for name, each in others.items()
            if each is not value
            and isinstance(each, torch.Tensor)
            and each.ndim
            and len(each) == len(value)
        }
        if len(fellows) >= (2 if idle.kind == FIELD else 1):
            small = {
                name: each.detach().clone()
                for name, each in fellows.items()
                if each.numel() <= _ELEMENTS and each.ndim > 1
            }
            self._seen[key], self._open[id(value)] = self._steps, (weakref.ref(value), key)
            held = self._held.setdefault(key, deque(maxlen=_HELD))
            held.append((value.detach().clone(), small))

    # ------------------------------------------------------------ what it is

    def freeze(self) -> dict[str, Any]:
        """Return what runs and reaches nothing; reads the values."""
        found = []
        for file in sorted({file for file, _ in self._lines}):
            if is_of_user(file):
                found += [each for idle in idle_in(file) for each in self._unused(file, idle)]
        return {UnusedValues.signal: UnusedValues((*found, *self._mistyped()))}

    def _mistyped(self) -> Iterator[Unused]:
        registry, files = self.watched.registry, {file for file, _ in self._lines}
        models, optimizers = registry.models.alive(), registry.optimizers.alive()
        for name, meant, file, line in mistyped(
            models.values(), optimizers.values(), sorted(filter(is_of_user, files))
        ):
            mark = file, line, ""
            yield Unused(
                kind=ATTRIBUTE,
                name=name,
                function="",
                fellows=(),
                given=(meant,),
                is_overwritten=False,
                holds="",
                shape=(),
                partner="",
                is_drawn_again=False,
                statement=statement(mark),
                site=site(mark),
            )

    def _unused(self, file: str, idle: Idle) -> Iterator[Unused]:
        first, last = idle.lines
        names = [self._lines.get((file, line)) for line in range(first, last + 1)]
        called = set().union(*(each for each in names if each))
        holds, shape, partner, again = "", (), "", False
        if idle.kind in {FIELD, PARAMETER}:
            held = [*self._held.get((file, idle), ())]
            if not held:
                return
            holds, partner = _holds(held, is_field=idle.kind == FIELD)
            shape = tuple(held[-1][0].shape)
            again = held[-1][0].numel() in self._draws
            if not holds or (holds not in {LENGTHS, MASK} and (file, idle) in self._elsewhere):
                return
        elif idle.kind == DROPPED:
            if not any(each.strip("_") in {idle.name, _ALIASES.get(idle.name)} for each in called):
                return
        elif idle.kind in {VALUE, UNCALLED} and not any(names):
            return
        function = "" if idle.function == "<module>" else idle.function
        mark = file, idle.line, idle.function
        yield Unused(
            idle.kind,
            idle.name,
            function,
            idle.fellows,
            idle.given,
            idle.is_overwritten,
            holds,
            shape,
            partner,
            again,
            statement(mark),
            site(mark),
        )


_ALIASES = {"div": "truediv", "mul": "multiply"}


def _first_line(frame: FrameType) -> int:
    is_file = not frame.f_code.co_flags & CO_OPTIMIZED
    return 0 if is_file else frame.f_code.co_firstlineno


def _forget(frame: FrameType, values: Any) -> None:
    """Empty the copy of a function's variables, which would keep its tensors alive."""
    is_copy = type(values) is dict and frame.f_code.co_flags & CO_OPTIMIZED
    if is_copy and sys.gettrace() is None and sys.getprofile() is None:
        values.clear()


def _is_data(value: Any) -> TypeGuard[torch.Tensor]:
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.ndim > 0
        and len(value) > 1
        and value.numel() <= _ELEMENTS
        and not is_in_graph(value)
        and not value.is_meta
        and not value.is_complex()
    )


def _holds(held: Sequence[_Value], *, is_field: bool) -> tuple[str, str]:
    """Return what values are, and the name of what they belong to; "" if they say nothing.

    Args:
        held: The values, and the tensors beside them.
        is_field: Whether they are a field of a batch, which may name the samples.
    """
    values = [value for value, _ in held]
    if all(bool((value == value[:1]).all()) for value in values):
        return "", ""
    whole = not any(value.is_floating_point() for value in values)
    partners = [name for name in held[0][1] if all(name in others for _, others in held)]
    for name in partners:
        pairs = [(value, others[name]) for value, others in held]
        if whole and all(_are_lengths(*each) for each in pairs):
            return LENGTHS, name
        if all(_is_mask(*each) for each in pairs):
            return MASK, name
    is_binary = all(bool(((value == 0) | (value == 1)).all()) for value in values)
    if is_binary and (values[0].dtype is torch.bool or not whole or values[0].ndim > 1):
        return FLAGS, ""
    if not whole:
        return REAL, ""
    together = torch.cat([value.flatten() for value in values])
    is_identity = is_field and values[0].ndim == 1 and len(together.unique()) == len(together)
    return ("" if is_identity else WHOLE), ""


def _are_lengths(lengths: torch.Tensor, padded: torch.Tensor) -> bool:
    """Return whether all samples have the same values from their lengths on, and others before."""
    if lengths.ndim != 1 or padded.ndim < 2 or not bool((lengths > 0).all()):
        return False
    if int(lengths.max()) > padded.shape[1]:
        return False
    places = torch.arange(padded.shape[1], device=lengths.device)
    return _is_padding(places >= lengths[:, None], padded)


def _is_mask(mask: torch.Tensor, padded: torch.Tensor) -> bool:
    """Return whether a mask marks the places that have the same value in all samples."""
    if mask.ndim < 2 or mask.shape != padded.shape[: mask.ndim]:
        return False
    if not bool(((mask == 0) | (mask == 1)).all()):
        return False
    return _is_padding(mask == 0, padded) or _is_padding(mask == 1, padded)


def _is_padding(places: torch.Tensor, padded: torch.Tensor) -> bool:
    if not bool(places.any()) or bool(places.all()):
        return False
    inside, others = padded[places], padded[~places]
    fill = inside.reshape(-1)[:1]
    return bool((inside == fill).all()) and float((others != fill).double().mean()) > 0.5
