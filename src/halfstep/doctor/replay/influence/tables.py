"""Tables of vectors whose rows the categories of several fields share.

One table may hold the categories of all fields, one field after the other: then the numbers of
each field must be moved by the number of categories before it. If they are not, the table has as
many rows as all fields together, no number reaches beyond those of the largest field, and category
5 of one field has the same vector as category 5 of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.answers import SharedRows
from halfstep.doctor.replay.influence.losses import place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.replay.influence.forwards import Forwards

_SAMPLES = 32
_WHOLE = 0.9
"""The share of the rows that the categories of a batch must make up together."""
_UNLIKE = 1.2
"""How much larger the largest field must be than the smallest: words are the same anywhere."""
_READ = 0.8
"""The largest share of the rows that may be read."""


def shared_rows(forwards: Forwards) -> Iterator[SharedRows]:
    """Yield the first table of a step of which several fields share rows.

    Args:
        forwards: The forward of the step.
    """
    for operator in forwards.base:
        if operator.name != "embedding" or not operator.needed[0]:
            continue
        table, index = operator.given[0], operator.given[1].detach()
        if index.ndim != 2 or len(index) < _SAMPLES or index.shape[1] < 2:
            continue
        sizes = (index.max(0).values + 1).tolist()
        rows, most = len(table), max(sizes)
        is_of_fields = _WHOLE * rows <= sum(sizes) <= rows and most >= _UNLIKE * min(sizes)
        if is_of_fields and most <= _READ * rows:
            yield SharedRows(rows, tuple(sizes), place(operator))
            return
