"""Remembers which calls outside the autograd graph made inf or NaN from finite tensors.

The tape does not contain these calls, so a replay takes their results as given. This module shows
whether the inf or NaN in an input of a step is data, or which call of the loop made it: for example
the call that computed a target, a weight or a normalised batch.

Each result is checked right after its call, because the program may overwrite or free the arguments
later. On an accelerator, the check is a number on the device, which is read only if a step is bad.
"""

from __future__ import annotations

import math
import re
import weakref
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from halfstep.doctor.internals import is_dispatch_mode_active, is_functorch_tensor, version_of
from halfstep.doctor.record import Maker
from halfstep.doctor.record.sites import calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.inexact import is_inexact, real_numbers
from halfstep.doctor.tensors.unfilled import ALLOCATING
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.signals.watched import Watched

TENSORS = 4096
DEPTH = 8
_ASSIGNMENT = "setitem"
_OPERATOR = re.compile(r"__[ir]?([a-z]+)__")
_ONE_NAME = {"truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul"}
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
# Each element of the result is an element of the first argument, possibly in another format.
_COPIES = frozenset(
    {
        *("bfloat16", "clone", "contiguous", "copy", "cpu", "cuda", "detach", "double", "float"),
        *("half", "pin_memory", "to", "type", "type_as"),
        *("chunk", "expand", "flatten", "getitem", "index_select", "narrow", "permute", "repeat"),
        *("reshape", "select", "split", "squeeze", "transpose", "unbind", "unsqueeze", "view"),
        *("imag", "real", "resolve_conj", "view_as_complex", "view_as_real"),
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The source of a tensor's elements.

    Attributes:
        op: The function's name in torch; "cast" for a cast to a format with a smaller range, "" if
            no recorded call made the tensor.
        finite: Whether the tensor was finite, or a number on its device that is finite only if all
            its elements are; None if unknown.
        args: The sources of the floating-point arguments, if they may be needed.
        dtype: Format of the tensor.
        mark: The line of the call, if it may be needed.
        depth: Number of calls from the tensor back to the first one in `args`.
        is_data: Whether the tensor, made by no recorded call, existed before any call used it.
        is_unfilled: Whether the tensor is allocated memory that nothing has filled.
    """

    op: str = ""
    finite: bool | torch.Tensor | None = None
    args: tuple[Origin, ...] = ()
    dtype: torch.dtype = torch.float32
    mark: Mark | None = None
    depth: int = 0
    is_data: bool = False
    is_unfilled: bool = False

    def is_finite(self) -> bool | None:
        """Return whether the tensor was finite; waits for the device."""
        if isinstance(self.finite, torch.Tensor):
            return bool(self.finite.isfinite())
        return self.finite


_DATA = Origin(is_data=True)
_UNKNOWN = Origin()
_UNFILLED = Origin(is_unfilled=True)


class _Known(NamedTuple):
    tensor: weakref.ref[torch.Tensor]
    version: int
    origin: Origin


class Source(NamedTuple):
    """The source of the inf or NaN in a tensor.

    Attributes:
        makers: The call that made inf or NaN from finite arguments, followed by the calls that made
            its arguments, in their order; empty if it is not a recorded call.
        is_known: Whether the source is known: a recorded call, or the data.
    """

    makers: tuple[Maker, ...]
    is_known: bool


class Origins(Signal):
    """Remembers where the tensors that now exist outside the autograd graph came from."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        watched.tape.on_copy = self.copied
        self._known: dict[int, _Known] = {}
        self._is_complete = True

    def note(self, name: str, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> None:
        """Remember a call outside the autograd graph, right after it.

        Args:
            name: The function's name in torch.
            given: The tensors in its arguments.
            made: The floating-point and complex tensors in its result.
        """
        if name in ALLOCATING or not given:  # Without tensors, the program chooses the numbers.
            for each in made if name in ALLOCATING else ():
                self._put(each, _UNFILLED)
            return
        op = _plain(name)
        floats = [each for each in given if is_inexact(each)]
        if op == "copy":  # overwrites its first argument
            floats = floats[-1:]
        if is_dispatch_mode_active() or any(map(is_functorch_tensor, (*given, *made))):
            # Outside of a transform, the result is another tensor; a mode would see our own calls.
            self.miss_calls()
            return
        if op.startswith("foreach_"):
            for each in made:
                self._put(each, _UNKNOWN)
            return
        if op not in _COPIES:
            self._computed(op, floats, made)
        elif not floats or _is_smaller(made[0].dtype, floats[0].dtype):
            self._computed("cast", floats, made)
        else:
            origin = self._origin(floats[0], version_of(floats[0]))
            for each in made:
                self._put(each, origin)

    def copied(self, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        """Remember that a tensor is a copy of another one."""
        self._put(copy, self._origin(tensor, version_of(tensor)))

    def assigned(self, tensor: torch.Tensor, value: torch.Tensor | None) -> None:
        """Remember an assignment to elements of a tensor, right after it.

        Args:
            tensor: The tensor.
            value: The tensor that was assigned; None for a number that the program has chosen.
        """
        before = self._before(tensor)
        origin = None if value is None else self._looked_at(value)
        if value is not None and tensor.dtype in HALVES and value.dtype != tensor.dtype:
            self._put(tensor, _UNKNOWN)  # The cast may have made inf.
        elif origin is None or origin.finite is True:
            self._put(tensor, before)
        elif origin.finite is False:
            self._put(tensor, origin)
        else:
            self._put(tensor, _call(_ASSIGNMENT, None, (origin, before), tensor.dtype, None))

    def miss(self, result: Any) -> None:
        """Remember that the call that made a result was not heard."""
        if type(result) in _PLAIN and not is_functorch_tensor(result):
            self._put(result, _UNKNOWN)

    def miss_calls(self) -> None:
        """From now on, take no tensor for data: a call that is not recorded may have made it."""
        self._is_complete = False

    def is_unfilled(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is allocated memory, or a copy of it, that nothing has filled."""
        return self._origin(tensor, version_of(tensor)).is_unfilled

    def of(self, tensor: torch.Tensor) -> Source:
        """Return the source of the inf or NaN in a tensor; waits for the device."""
        return _source(self._origin(tensor, version_of(tensor)))

    def _computed(
        self, op: str, floats: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        args: tuple[Origin, ...] | None = None
        mark = None
        for each in made:
            finite = _finite(each)
            if finite is True:
                self._put(each, Origin(op, finite=True, dtype=each.dtype))
                continue
            if args is None:
                changed = {id(other) for other in made}
                args = tuple(
                    self._before(other) if id(other) in changed else self._looked_at(other)
                    for other in floats
                )
                mark = calling_line()
            bad = [arg for arg in args if finite is False and arg.finite is False]
            if bad:  # The call that made the inf or NaN is an earlier one.
                self._put(each, max(bad, key=lambda arg: (bool(arg.op), arg.is_data)))
            else:
                self._put(each, _call(op, finite, args, each.dtype, mark))

    def _looked_at(self, tensor: torch.Tensor) -> Origin:
        origin = self._origin(tensor, version_of(tensor))
        return replace(origin, finite=_finite(tensor)) if not origin.op else origin

    def _before(self, tensor: torch.Tensor) -> Origin:
        """Return the origin of a tensor before the call that has just changed it in place."""
        return self._origin(tensor, max(0, version_of(tensor) - 1))

    def _origin(self, tensor: torch.Tensor, version: int) -> Origin:
        known = self._known.get(id(tensor))
        if known is not None and known.tensor() is tensor:
            return known.origin if known.version == version else _UNKNOWN
        # A change in place, possibly of a view, has increased the version.
        is_new = (
            version == 0 and not tensor.is_inference() and not self.watched.tape.has_made(tensor)
        )
        return _DATA if is_new and self._is_complete else _UNKNOWN

    def _put(self, tensor: torch.Tensor, origin: Origin) -> None:
        key, version = id(tensor), version_of(tensor)
        self._known.pop(key, None)
        if origin is self._origin(tensor, version):
            return
        ref = weakref.ref(tensor, partial(self._forget, key))
        self._known[key] = _Known(ref, version, origin)  # It is now the last to be forgotten.
        if len(self._known) > TENSORS:
            oldest = self._known.pop(next(iter(self._known)), None)
            if oldest is not None and not (oldest.origin.is_data or oldest.origin.finite is True):
                self.miss_calls()

    def _forget(self, key: int, ref: weakref.ref[torch.Tensor]) -> None:
        known = self._known.get(key)
        if known is not None and known.tensor is ref:
            del self._known[key]


def _source(origin: Origin) -> Source:
    if not origin.op or origin.is_finite():
        return Source((), is_known=origin.is_data)
    finite = [each.is_finite() for each in origin.args]
    if all(finite):
        args = [_maker(each, 2, number) for number, each in enumerate(origin.args) if each.op]
        return Source((_maker(origin, 1, 0), *args), is_known=True)
    bad = [each for each, sound in zip(origin.args, finite, strict=True) if sound is False]
    if bad:
        sources = [_source(each) for each in bad]
        return max(sources, key=lambda each: (each.is_known, bool(each.makers)))
    unsure = [each for each, sound in zip(origin.args, finite, strict=True) if sound is None]
    # An assignment makes no number: the inf or NaN was in the value or in the tensor before.
    is_sure = origin.op == _ASSIGNMENT and len(unsure) == 1
    return _source(unsure[0]) if is_sure else Source((), is_known=False)


def _maker(origin: Origin, distance: int, number: int) -> Maker:
    form = format_name(origin.dtype)
    return Maker(origin.op, form, (), distance, number, site(origin.mark))


def _call(
    op: str,
    finite: bool | torch.Tensor | None,
    args: tuple[Origin, ...],
    dtype: torch.dtype,
    mark: Mark | None,
) -> Origin:
    depth = 1 + max((each.depth for each in args), default=0)
    if depth > DEPTH:
        args, depth = (_UNKNOWN,), 1
    return Origin(op, finite, args, dtype, mark, depth)


@cache
def _plain(name: str) -> str:
    """Return a function's name without the underscores and letters for its variants."""
    operator = _OPERATOR.fullmatch(name)
    plain = operator[1] if operator else name.strip("_")
    return _ONE_NAME.get(plain, plain)


def _is_smaller(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Return whether a format has a smaller range than another one."""
    return dtype != other and torch.finfo(dtype).max < torch.finfo(other).max


def _finite(tensor: torch.Tensor) -> bool | torch.Tensor | None:
    """Return whether a tensor is finite; see `Origin.finite`."""
    is_plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
    if not is_plain or tensor.is_meta or tensor.is_nested:
        return None
    if tensor.numel() == 0 or not is_inexact(tensor):
        return True
    if tensor.itemsize == 1:
        return None
    values = real_numbers(tensor.detach())
    total = values.sum(dtype=torch.float64 if values.dtype == torch.float64 else torch.float32)
    if tensor.device.type != "cpu":
        return None if _is_capturing(tensor) else total
    if math.isfinite(total.item()):
        return True
    return all(math.isfinite(each.item()) for each in torch.aminmax(values))


def _is_capturing(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
