"""Tables of vectors whose rows the categories of several fields share.

One table may hold the categories of all fields, one field after the other: then the numbers of
each field must be moved by the number of categories before it. If they are not, the table has as
many rows as all fields together, no number reaches beyond those of the largest field, and category
5 of one field has the same vector as category 5 of the others.

A table may also have only as many rows as the largest field has categories. Words are shared on
purpose, but those of each position are spread over the whole table, while the categories of a small
field are its first rows. Nothing tells the fields apart if their vectors are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.answers import SharedRows
from halfstep.doctor.replay.influence.losses import place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_SAMPLES = 32
_SUMS = frozenset({"mean", "sum"})
_WHOLE = 0.9
"""The share of the rows that the categories of a batch must make up together."""
_UNLIKE = 1.2
"""How much larger the largest field must be than the smallest: words are the same anywhere."""
_READ = 0.8
"""The largest share of the rows that may be read."""
_DRAWS, _SMALLER = 10, 1.5
"""How often a batch must have drawn each category of a field on average, so that none is unseen by
chance; and how much larger the largest field must be then."""


def shared_rows(forwards: Forwards) -> Iterator[SharedRows]:
    """Yield the first table of a step of which several fields share rows.

    Args:
        forwards: The forward of the step.
    """
    for operator in forwards.base:
        if operator.name != "embedding" or not operator.needed[0]:
            continue
        table, index = operator.given[0], operator.given[1].detach()
        if index.ndim < 2 or index.shape[-1] < 2 or index.numel() < _SAMPLES * index.shape[-1]:
            continue
        fields = index.flatten(0, -2)
        sizes = (fields.max(0).values + 1).tolist()
        rows, most = len(table), max(sizes)
        is_of_fields = _WHOLE * rows <= sum(sizes) <= rows and most >= _UNLIKE * min(sizes)
        is_for_all = index.ndim == 2 and is_of_fields and most <= _READ * rows
        if is_for_all or (most >= _WHOLE * rows and _are_added(forwards.base, operator, sizes)):
            yield SharedRows(rows, tuple(sizes), place(operator))
            return


def _are_added(operators: Sequence[Operator], read: Operator, sizes: Sequence[int]) -> bool:
    """Return whether fields of known and unlike sizes are read, and their vectors are added."""
    fields = read.given[1].detach().flatten(0, -2)
    if max(sizes) < _SMALLER * min(sizes) or len(fields) < _DRAWS * max(sizes):
        return False
    if any(len(each.unique()) != size for each, size in zip(fields.T, sizes, strict=True)):
        return False
    sums = (each for each in operators if each.name in _SUMS and each.makers[:1] == [read.number])
    return any(
        [at % each.given[0].ndim for at in each.args[1]] == [read.made[0].ndim - 2] for each in sums
    )
