"""Whether a change of an operator's result stays with one sample, or with the positions after it.

Layouts are not known, so each dimension whose size fits is tried: dimensions of samples may be
folded together with others, such as (samples * heads, positions, features).
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from halfstep.doctor.replay.influence.forward import OUTSIDE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from halfstep.doctor.replay.influence.forward import Operator

_PADS = "constant_pad_nd"
"""An operator that changes the size of a dimension, and mixes nothing."""
_CROPS = frozenset({"narrow", "slice"})
"""Operators that leave out positions, such as those that a convolution has added."""
NONE, WITHIN, BEYOND, UNKNOWN = "none", "within", "beyond", "unknown"
"""Whether a result changes; if it does, whether within what may change, or beyond it, or unknown
because no dimension fits."""


def _indices(mask: torch.Tensor, first: int, last: int) -> list[int]:
    """Return at which indices of a range of dimensions, taken as one, a mask is set."""
    others = mask.flatten(first, last).movedim(first, 0)
    others = others.flatten(1) if others.ndim > 1 else others[:, None]
    return [int(each) for each in others.any(1).nonzero().flatten()]


class OfSample:
    """Whether a change stays with one sample of a batch.

    Args:
        sample: The sample that is changed.
        count: Number of samples.
    """

    def __init__(self, sample: int, count: int) -> None:
        self._sample, self._count = sample, count

    def __call__(self, mask: torch.Tensor) -> str:
        """Return the extent of a change."""
        if not mask.any():
            return NONE
        ranges = [(at, at) for at, size in enumerate(mask.shape) if size % self._count == 0]
        ranges += [
            (at, at + 1)
            for at in range(mask.ndim - 1)
            if mask.shape[at] * mask.shape[at + 1] == self._count
        ]
        for first, last in ranges:
            if self._stays(mask, first, last):
                return WITHIN
        return BEYOND if ranges else UNKNOWN

    def dimension(self, mask: torch.Tensor) -> int | None:
        """Return the only dimension in which the change stays with the sample; None without one."""
        sizes = enumerate(mask.shape)
        fits = [at for at, size in sizes if size == self._count and self._stays(mask, at, at)]
        return fits[0] if len(fits) == 1 else None

    def _stays(self, mask: torch.Tensor, first: int, last: int) -> bool:
        found = _indices(mask, first, last)
        size = 1
        for each in mask.shape[first : last + 1]:
            size *= each
        width = size // self._count
        return all(each // width == self._sample for each in found) or all(
            each % self._count == self._sample for each in found
        )


class OfPositions:
    """Whether a change of the inputs from a position on stays from this position on.

    Args:
        start: The first position that is changed, in all samples.
        length: Number of positions.
        count: Number of samples.
    """

    def __init__(self, start: int, length: int, count: int) -> None:
        self._start, self._length, self._count = start, length, count

    def __call__(self, mask: torch.Tensor) -> str:
        """Return the extent of a change."""
        if not mask.any():
            return NONE
        if not self._has_positions(mask):
            return UNKNOWN
        known = False
        for at, size in enumerate(mask.shape):
            for length in (self._length, self._length - 1):
                if size not in (length, length * self._count):
                    continue
                known = True
                found = _indices(mask, at, at)
                if all(each % length >= self._start for each in found):
                    return WITHIN
                if size > length and all(each // self._count >= self._start for each in found):
                    return WITHIN
        if known and self._is_between_positions(mask):
            return WITHIN
        return BEYOND if known else UNKNOWN

    def _has_positions(self, mask: torch.Tensor) -> bool:
        """Return whether a result can have dimensions of samples, of positions and of features.

        Otherwise, a number of features that is equal to that of positions would be taken for it.
        """
        long = [each for each in mask.shape if each > 1]
        folded = {self._count * self._length, self._count * (self._length - 1)}
        return len(long) + (self._count == 1) > 2 or bool(folded & {*long})

    def _is_between_positions(self, mask: torch.Tensor) -> bool:
        """Return whether only pairs of positions change of which one may change, as in scores."""
        sizes = (self._length, self._length - 1)
        fits = [at for at, size in enumerate(mask.shape) if size in sizes]
        return any(
            not mask.narrow(one, 0, self._start).narrow(other, 0, self._start).any()
            for one, other in combinations(fits, 2)
        )


def extents(
    operators: Sequence[Operator],
    changed: Sequence[Sequence[torch.Tensor]],
    extent: Callable[[torch.Tensor], str],
) -> list[str]:
    """Return the extent of the change of each operator; the largest one of its results."""
    order = (NONE, UNKNOWN, WITHIN, BEYOND)
    known: list[str] = []
    for operator, masks in zip(operators, changed, strict=True):
        found = max((extent(each) for each in masks), key=order.index, default=NONE)
        maker = operator.makers[0] if operator.makers else OUTSIDE
        if operator.name == _PADS and found == UNKNOWN and maker != OUTSIDE:
            found = known[maker]
        is_longer = maker != OUTSIDE and known[maker] == UNKNOWN
        if operator.name in _CROPS and found != UNKNOWN and is_longer:  # as far as its own inputs
            before = (known[each] for each in operators[maker].makers if each != OUTSIDE)
            known[maker] = max(before, key=order.index, default=UNKNOWN)
        known.append(found)
    return known


def sources(
    operators: Sequence[Operator], known: Sequence[str], end: int, through: frozenset[str]
) -> list[tuple[Operator, set[str]]]:
    """Return the operators at which a change first goes beyond what may change.

    Args:
        operators: The operators.
        known: The extent of the change of each of them.
        end: Number of the operator whose inputs are traced back.
        through: The extents of the results through which they are traced.

    Returns:
        The operators in order, each with the extents of its inputs.
    """
    waiting, seen = [end], {end}
    found = []
    while waiting:
        operator = operators[waiting.pop()]
        makers = {each for each in operator.makers if each != OUTSIDE}
        given = {known[each] for each in makers} - {NONE}
        if known[operator.number] == BEYOND and BEYOND not in given and operator.number != end:
            found.append((operator, given))
            continue
        for each in makers - seen:
            if known[each] in through:
                seen.add(each)
                waiting.append(each)
    return sorted(found, key=lambda each: each[0].number)
