"""Follows large numbers that fp32 rounds until a program subtracts or compares them.

fp32 represents every whole number up to 2**24. The numbers are whole ones, or those of fp64. Times
in seconds since 1970 are rounded to multiples of 128, which does no harm by itself. But the
difference of two of them may be nothing but rounding. Copies of some of the numbers are followed as
well. Inside of modules, the operators of the last step's replay are examined. In it, numbers of
which it is not known what they were before count, too, if their differences are only a few of the
steps that fp32 has there: a data set may have rounded them.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from halfstep.doctor.internals import (
    is_functorch_tensor,
    storage_number,
    version_of,
    weak_storage,
)
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.nesting import exchange, tensors_in
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

EXACT = 2**24
"""fp32 represents all whole numbers up to this one."""
MOST = 2**20
"""Elements of the largest tensor that is examined."""
_LOOKS, _LINES, _FOLLOWED = 4, 64, 16
_CASTS = frozenset({"float", "to", "type", "type_as"})
_MADE = frozenset({"tensor", "as_tensor"})
_MOVES = frozenset(
    {"getitem", "index_select", "gather", "take", "stack", "cat", "clone", "contiguous", "reshape"}
)
_PROMOTING = frozenset({"add", "div", "mul", "rmul", "radd", "true_divide"})
_DIFFERENCES = frozenset({"sub", "rsub", "isub", "subtract", "diff"})
COMPARISONS = frozenset({"eq", "ne", "lt", "gt", "le", "ge"})
USES = _DIFFERENCES | COMPARISONS
_WRONG = 0.1
"""A difference is wrong if its error is a larger share of it."""
STEPS = 4
"""The most steps of fp32 by which two numbers differ whose difference is wrong, usually."""
_NOT_ZERO = 1 / 16
"""The share of the results that are such differences, and not 0, which may be exact."""


@dataclass(frozen=True, slots=True)
class LostDifference:
    """Differences or comparisons of rounded whole numbers in one line.

    Attributes:
        op: The function.
        largest: The largest of the whole numbers.
        count: Number of results.
        share: The share of them that are wrong; of equal pairs for a comparison of equality.
        distinct: Number of different results.
        exact: Number of different results of the exact whole numbers; 0 if these are unknown.
        cast: The line that makes them fp32.
        site: The line of the function.
    """

    op: str
    largest: float
    count: int
    share: float
    distinct: int
    exact: int
    cast: Site | None
    site: Site | None


@dataclass(frozen=True, slots=True)
class LostDifferences:
    """All such lines."""

    signal: ClassVar[str] = "whole_numbers"
    lines: tuple[LostDifference, ...] = ()


@dataclass(slots=True, eq=False)
class _Followed:
    """A tensor of rounded whole numbers.

    Attributes:
        storage: A weak reference to its storage.
        version: Its version.
        exact: The whole numbers in fp64.
        mark: The line that made them fp32.
    """

    storage: Any
    version: int
    exact: torch.Tensor
    mark: Mark | None


class WholeNumbers(Signal):
    """Follows the results of a few casts of each line."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._looks: Counter[Mark | None] = Counter()
        self._used: Counter[Mark | None] = Counter()
        self._rounding: set[Mark | None] = set()  # lines with numbers that are followed
        self._followed: dict[int, _Followed] = {}
        self._found: dict[Mark | None, LostDifference] = {}

    def on_call(self, heard: Heard) -> None:
        """Examine a cast of whole numbers, or a difference of those that are followed."""
        name, result, args = heard.name.strip("_"), heard.result, heard.call.args
        if not isinstance(result, torch.Tensor) or not args:
            return
        if self._followed and name in _MOVES:
            self.moved(heard.call.function, args, heard.call.kwargs, result)
            return
        if name in _CASTS or name in _PROMOTING or name in _MADE:
            if result.dtype == torch.float32:
                self._made(name, args, result)
        elif self._followed and name in USES:
            kwargs, is_written = heard.call.kwargs, result is args[0]
            self.used(name, args, result, calling_line(), kwargs, in_place=is_written)

    def _made(self, name: str, args: Sequence[Any], result: torch.Tensor) -> None:
        if name in _CASTS:
            self.cast(args[0], result, calling_line())
        elif name in _PROMOTING and len(args) == 2:
            if any(map(_may_be_rounded, args)) and not all(map(_is_tensor, args)):
                factor = next((each for each in args if not _is_tensor(each)), None)
                whole = next(filter(_may_be_rounded, args))
                if isinstance(factor, int | float):
                    self.cast(whole, result, calling_line(), name=name, factor=factor)
        elif name in _MADE and not _is_tensor(args[0]) and 1 < result.numel() <= MOST:
            self._made_of_numbers(args[0], result)

    def _made_of_numbers(self, numbers: Any, result: torch.Tensor) -> None:
        mark = calling_line()
        if self._looks[mark] < _LOOKS and isinstance(numbers, list | tuple | np.ndarray):
            given = np.asarray(numbers)
            if given.dtype.kind in "iuf" and given.dtype != np.float32:
                kind = np.float64 if given.dtype.kind == "f" else np.int64
                self.cast(torch.from_numpy(given.astype(kind)), result, mark)

    def cast(
        self,
        whole: Any,
        result: torch.Tensor,
        mark: Mark | None,
        *,
        name: str = "",
        factor: float = 0,
    ) -> None:
        """Follow large numbers that were made fp32, if fp32 rounds some of them.

        Args:
            whole: The numbers.
            result: The result.
            mark: The line.
            name: "mul", "div" or "add" for a product, a quotient or a sum.
            factor: The other operand.
        """
        if not (_may_be_rounded(whole) and _is_readable(result) and whole.shape == result.shape):
            return
        if not 1 < whole.numel() <= MOST:
            return
        if self._looks[mark] >= _LOOKS and mark not in self._rounding:
            return
        if mark not in self._looks and len(self._looks) >= _LINES:
            return
        self._looks[mark] += 1
        numbers = whole.detach()
        if not EXACT < float(numbers.abs().max()) < math.inf or bool(
            (numbers.float().double() == numbers.double()).all()
        ):
            return
        self._rounding.add(mark)
        self._follow(result, _computed(numbers.double().to(result.device), name, factor), mark)

    def moved(
        self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: torch.Tensor
    ) -> None:
        """Follow a copy of numbers that are followed, as by an index.

        Args:
            function: The function that has made it.
            args: The function's arguments.
            kwargs: The function's keyword arguments.
            result: The copy.
        """
        given = [self._of(each, written=False) for each in tensors_in((*args, *kwargs.values()))]
        source = next((each for each in given if each is not None), None)
        if source is None or not _is_readable(result) or result.dtype != torch.float32:
            return
        if storage_number(result) in self._followed or not 1 < result.numel() <= MOST:
            return

        def exact(value: Any) -> Any:
            followed = self._of(value, written=False)
            if followed is not None:
                return _view(followed.exact, value)
            is_real = _is_readable(value) and value.is_floating_point()
            return value.detach().double() if is_real else value

        made = function(*exchange(tuple(args), exact), **exchange(dict(kwargs), exact))
        if isinstance(made, torch.Tensor) and made.shape == result.shape:
            self._follow(result, made, source.mark)

    def _follow(self, result: torch.Tensor, exact: torch.Tensor, mark: Mark | None) -> None:
        self._followed = {
            key: each for key, each in self._followed.items() if not each.storage.expired()
        }
        if len(self._followed) < _FOLLOWED and result.is_contiguous():
            followed = _Followed(weak_storage(result), version_of(result), exact.contiguous(), mark)
            self._followed[storage_number(result)] = followed

    def used(
        self,
        name: str,
        args: Sequence[Any],
        result: torch.Tensor,
        mark: Mark | None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        """Compare a difference or a comparison with that of the exact whole numbers.

        Args:
            name: The function.
            args: Its arguments.
            result: Its result.
            mark: The line.
            kwargs: Its keyword arguments.
            in_place: Whether the result has replaced the first argument.
        """
        followed = [
            self._of(each, written=in_place and not number) for number, each in enumerate(args[:2])
        ]
        source = next((each for each in followed if each is not None), None)
        if source is None or self._used[mark] >= _LOOKS or mark in self._found:
            return
        if name != "diff" and (len(args) < 2 or kwargs):
            return
        if kwargs is None and name in {"sub", "rsub"}:  # It may be a multiple that is subtracted.
            one, other = args[:2] if name == "sub" else (args[1], args[0])
            if not torch.equal(one - other, result):
                return
        self._used[mark] += 1
        values = [
            each.double() if _is_tensor(each) and whole is None else each
            for each, whole in zip(args[:2], followed, strict=True)
        ]
        values = [
            each if whole is None else _view(whole.exact, each)
            for each, whole in zip(values, followed, strict=True)
        ]
        if name == "diff":
            exact = torch.diff(values[0], *args[1:], **(kwargs or {}))
        elif name in COMPARISONS:
            exact = getattr(torch, name)(*values)
        else:
            exact = values[1] - values[0] if name == "rsub" else values[0] - values[1]
        if exact.shape != result.shape or result.numel() < 2:
            return
        share = _wrong(name, result.detach(), exact)
        if share:
            self._found[mark] = LostDifference(
                name,
                float(source.exact.abs().max()),
                result.numel(),
                share,
                result.unique().numel(),
                exact.unique().numel(),
                site(source.mark),
                site(mark),
            )

    def in_steps(
        self, name: str, numbers: Sequence[torch.Tensor], result: torch.Tensor, mark: Mark | None
    ) -> None:
        """Look for differences of large numbers that are only a few steps of fp32.

        Args:
            name: The function.
            numbers: Its two operands.
            result: Its result.
            mark: The line.
        """
        dtypes = {each.dtype for each in numbers}
        if mark in self._found or dtypes != {torch.float32} or not 1 < result.numel() <= MOST:
            return
        size = torch.maximum(*(each.detach().abs() for each in numbers))
        if not EXACT < float(size.max()) < math.inf:
            return
        step = torch.nextafter(size, size.new_tensor(math.inf)) - size
        near = (size > EXACT) & (result.abs() <= STEPS * step)
        if float((near & (result != 0)).double().mean()) >= _NOT_ZERO:
            count, share = result.numel(), float(near.double().mean())
            self._found[mark] = LostDifference(
                name, float(size.max()), count, share, result.unique().numel(), 0, None, site(mark)
            )

    def _of(self, tensor: Any, *, written: bool) -> _Followed | None:
        """Return the whole numbers of which a tensor is a view."""
        if not _is_readable(tensor) or tensor.dtype != torch.float32:
            return None
        found = self._followed.get(storage_number(tensor))
        if found is None or found.storage.expired():
            return None
        if found.version != version_of(tensor) - written:
            return None
        return found

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        return {LostDifferences.signal: LostDifferences(tuple(self._found.values()))}


def _computed(numbers: torch.Tensor, name: str, factor: float) -> torch.Tensor:
    if name in {"div", "true_divide"}:
        return numbers / factor
    if name in {"mul", "rmul"}:
        return numbers * factor
    return numbers + factor


def _view(exact: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return exact.as_strided(like.shape, like.stride(), like.storage_offset())


def _wrong(name: str, result: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the share of wrong results; of pairs that are equal for a comparison of equality."""
    if name not in COMPARISONS:
        error = (result.double() - exact).abs()
        return float((error > _WRONG * exact.abs()).double().mean())
    wrong = (result.bool() != exact.bool()).double().sum()
    equal = {"eq": result.bool(), "ne": ~result.bool()}.get(name)
    count = result.numel() if equal is None else equal.double().sum().clamp(min=1)
    return float(wrong / count)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _may_be_rounded(value: Any) -> bool:
    """Return whether a tensor may contain numbers that fp32 rounds."""
    return _is_readable(value) and value.dtype in {torch.int64, torch.int32, torch.float64}


def _is_readable(value: Any) -> bool:
    return (
        type(value) in {torch.Tensor, torch.nn.Parameter}
        and not (is_functorch_tensor(value) or value.is_meta or value.is_nested)
        and value.layout is torch.strided
        and not (value.is_cuda and torch.cuda.is_current_stream_capturing())
    )
