"""Sums by index that lose terms, because an index repeats.

`x[index] += y` takes the elements, adds, and writes them back. Where the index repeats, each write
is the old element plus one term, and only the last one stays. If the terms depend on the old
elements, as those of a running average do, each write is complete by itself.

`scatter` with an index that repeats gives the gradient of the place to all values that were written
to it, although only one of them stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.influence import LostWrites
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import place
from halfstep.doctor.replay.memory import storage_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

MOST = 2**22
"""Elements of the largest tensor that is examined."""
_ROUNDING = 1e-5
_PUTS = frozenset({"_unsafe_index_put", "index_put", "index_put_"})
_COPIES = frozenset({"index_copy", "index_copy_", "scatter", "scatter_"})
_SCATTERS = frozenset({"scatter", "scatter_"})
_TAKES = frozenset({"_unsafe_index", "gather", "index", "index_select"})
_SUMS = frozenset({"add", "add_", "sub", "sub_"})
_SHAPES = frozenset({"_to_copy", "_unsafe_view", "alias", "clone", "detach", "expand", "view"})


def lost_writes(forwards: Forwards) -> Iterator[LostWrites]:
    """Yield the writes that lose terms.

    Args:
        forwards: The forward of the step.
    """
    for each in forwards.base:
        if each.name in _PUTS | _COPIES and len(each.given) > 2:
            found = _lost(forwards.base, each)
            if found is not None:
                yield found


def _lost(operators: Sequence[Operator], write: Operator) -> LostWrites | None:
    if write.name in _PUTS and len(write.args) > 3 and write.args[3]:
        return None
    added = _sum_behind(operators, write.makers[-1])
    places = None if added is None else _places(write)
    taken = None
    if added is not None and places is not None:
        taken = _taken(operators, added, write, places)
    if added is None or places is None or taken is None:
        return _replaced(write)
    at, old = taken
    term = added.given[1 - at]
    if term.ndim == 0 or _depends(operators, added.makers[1 - at], write, old):
        return None
    return _lost_terms(write, places, old.double().flatten(), is_of_rows=_is_of_rows(write, term))


def _replaced(write: Operator) -> LostWrites | None:
    """Return what a scatter loses that adds nothing, if its values need gradients."""
    is_scatter = write.name in _SCATTERS and len(write.given) > 2 and write.needed[-1]
    places = _places(write) if is_scatter and len(write.args) == 4 else None
    if places is None:
        return None
    return _lost_terms(write, places, torch.zeros_like(places).double().flatten(), replaces=True)


def _lost_terms(
    write: Operator,
    places: torch.Tensor,
    old: torch.Tensor,
    *,
    is_of_rows: bool = False,
    replaces: bool = False,
) -> LostWrites | None:
    written = write.given[-1].detach().expand(places.shape).double().flatten()
    limit = _ROUNDING * float(torch.maximum(written.abs(), old.abs()).max())
    terms, (unique, inverse) = written - old, places.flatten().unique(return_inverse=True)
    zeros = torch.zeros(len(unique), dtype=terms.dtype, device=terms.device)
    expected = zeros.index_add(0, inverse, terms)
    highest = (zeros - torch.inf).index_reduce(0, inverse, terms, "amax")
    kept = write.values[0].double().flatten()[unique] - zeros.index_copy(0, inverse, old)
    differs = zeros.bool().index_fill(0, inverse[highest[inverse] - terms > limit], value=True)
    lost = ((expected - kept).abs() > limit) & differs
    if not bool(lost.any()) or _is_one_slot(write, unique[lost]):
        return None
    return LostWrites(
        write.name,
        places.numel(),
        len(unique),
        float((expected - kept)[lost].abs().mean()),
        float(terms.abs().mean()),
        write.needed[-1],
        is_of_rows,
        replaces,
        place(write),
    )


def _sum_behind(operators: Sequence[Operator], number: int) -> Operator | None:
    """Return the sum of two tensors whose result is written."""
    while number != OUTSIDE and operators[number].name in _SHAPES:
        number = operators[number].makers[0]
    if number == OUTSIDE or operators[number].name not in _SUMS:
        return None
    return operators[number] if len(operators[number].given) == 2 else None


def _taken(
    operators: Sequence[Operator], added: Operator, write: Operator, places: torch.Tensor
) -> tuple[int, torch.Tensor] | None:
    """Return which term of a sum are the elements that the write replaces, and these elements.

    A loop may have taken them before anything of the step was recorded: their values tell.
    """
    before = write.makers[0]
    for at, maker in enumerate(added.makers):
        number = maker
        while number != OUTSIDE and operators[number].name in _SHAPES:
            number = operators[number].makers[0]
        term = added.given[at].detach()
        if number == OUTSIDE and before != OUTSIDE and not added.needed[at]:
            old = operators[before].values[0].flatten()[places]
            if old.shape == term.shape and torch.equal(old, _before(operators, maker, term)):
                return at, old
        if number == OUTSIDE or operators[number].name not in _TAKES:
            continue
        take = operators[number]
        same = take.given[0].shape == write.given[0].shape and storage_key(
            take.given[0]
        ) == storage_key(write.given[0])
        its = _places(take) if same else None
        if its is not None and its.shape == places.shape and torch.equal(its, places):
            return at, take.values[0]
    return None


def _before(operators: Sequence[Operator], maker: int, term: torch.Tensor) -> torch.Tensor:
    """Return a term as it was before the sum, which may be computed in its place."""
    return term if maker == OUTSIDE else operators[maker].values[0]


def _places(operator: Operator) -> torch.Tensor | None:
    """Return the numbers of the elements that an operator takes or writes; None if unknown."""
    tensor, args = operator.given[0], operator.args
    if not tensor.is_floating_point() or tensor.numel() > MOST or len(args) < 2:
        return None
    numbers = torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape)
    if operator.name in _PUTS or operator.name in {"_unsafe_index", "index"}:
        indices = [slice(None) if each is None else each for each in args[1]]
        masks = [each for each in args[1] if each is not None and each.dtype == torch.bool]
        return None if masks else numbers[tuple(indices)]  # A mask names each place once.
    dim, index = args[1:3]
    if not isinstance(index, torch.Tensor):
        return None
    if operator.name.startswith("index"):
        return numbers.index_select(dim, index)
    if operator.name.startswith("scatter") and operator.given[-1].shape != index.shape:
        return None  # Only a part of the values is written.
    return numbers.gather(dim, index)


def _indexed(write: Operator) -> list[int]:
    """Return the dimensions along which a write has an index."""
    if write.name in _COPIES:
        return [int(write.args[1]) % write.given[0].ndim]
    return [dim for dim, each in enumerate(write.args[1]) if each is not None]


def _is_one_slot(write: Operator, lost: torch.Tensor) -> bool:
    """Return whether terms are only lost at one index, which may be that of padding."""
    shape = write.given[0].shape
    coordinates = torch.unravel_index(lost, shape)
    return any(
        bool((coordinates[dim] == coordinates[dim][0]).all())
        for dim in _indexed(write)
        if shape[dim] > 1
    )


def _is_of_rows(write: Operator, term: torch.Tensor) -> bool:
    """Return whether `index_add` along the first dimension makes the same sum."""
    if write.name not in _PUTS or len(write.args[1]) != 1:
        return False
    index = write.args[1][0]
    return bool(index.ndim == 1 and term.shape == index.shape + write.given[0].shape[1:])


def _depends(
    operators: Sequence[Operator], number: int, write: Operator, old: torch.Tensor
) -> bool:
    """Return whether a term depends on old elements of the tensor that is written."""
    key = storage_key(write.given[0])
    waiting, seen = [number], {number}
    while waiting:
        current = waiting.pop()
        if current == OUTSIDE:
            continue
        operator = operators[current]
        for tensor, maker in zip(operator.given, operator.makers, strict=True):
            is_old = maker == OUTSIDE and tensor.shape == old.shape and torch.equal(tensor, old)
            if is_old or storage_key(tensor) == key:
                return True
            if maker not in seen:
                seen.add(maker)
                waiting.append(maker)
    return False
