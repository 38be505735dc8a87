"""Tables of positions whose rows go to the samples of a batch, not to the positions of a sequence.

A table is a parameter or a buffer with more rows than the batch has samples, of which a model takes
the first ones. If they are added along the dimension of the samples, all positions of a sequence
get the same row, and the output for a sample depends on its place in the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.influence import TableOfSamples
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import losses, place
from halfstep.doctor.replay.influence.samples import count_of_samples
from halfstep.doctor.replay.memory import storage_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_MEETINGS = frozenset({"add", "add_", "mul", "mul_"})
_SHAPES = frozenset(
    {
        *("_to_copy", "_unsafe_view", "alias", "clone", "detach", "expand", "mul", "permute"),
        *("squeeze", "transpose", "unsqueeze", "view"),
    }
)


def tables_of_samples(
    forwards: Forwards, sequences: Sequence[torch.Tensor]
) -> Iterator[TableOfSamples]:
    """Yield the sums of a batch and the first rows of a table, one for each sample.

    Args:
        forwards: Runs the forward.
        sequences: The inputs that are known to have the shape (samples, positions).
    """
    inputs = [*forwards.inputs.values()]
    counts = {count_of_samples(each, inputs, sequences) for each in losses(forwards.base)}
    count = counts.pop() if len(counts) == 1 else None
    if count is None:
        return
    operators = forwards.base
    keys = {storage_key(each) for each in inputs}
    depends = _dependent(operators, keys)
    for each in operators:
        if each.name not in _MEETINGS or len(each.given) != 2:
            continue
        for at in (0, 1):
            batch, rows = each.given[at], each.given[1 - at]
            mine, its = each.makers[at], each.makers[1 - at]
            is_batch = storage_key(batch) in keys if mine == OUTSIDE else depends[mine]
            if its == OUTSIDE or depends[its] or not (is_batch and _is_along(batch, rows, count)):
                continue
            table = _table(operators, its, count)
            if table:
                yield TableOfSamples(count, batch.shape[1], table, place(each))
                return


def _dependent(operators: Sequence[Operator], keys: set[int]) -> list[bool]:
    """Return which operators compute with values of inputs, given by keys of storages."""
    depends: list[bool] = []
    for each in operators:
        depends.append(
            any(
                depends[maker] if maker != OUTSIDE else storage_key(tensor) in keys
                for tensor, maker in zip(each.given, each.makers, strict=True)
            )
        )
    return depends


def _is_along(batch: torch.Tensor, rows: torch.Tensor, count: int) -> bool:
    """Return whether rows are laid along samples, and each is that of all its positions."""
    return (
        batch.ndim == rows.ndim == 3
        and len(batch) == len(rows) == count
        and rows.shape[1] == 1 < batch.shape[1]
        and not torch.equal(rows[0], rows[1])
    )


def _table(operators: Sequence[Operator], number: int, count: int) -> int:
    """Return the number of rows of the table whose first ones a result is; 0 if it is none."""
    while number != OUTSIDE:
        operator = operators[number]
        given = operator.given
        if operator.name == "slice" and operator.args[1:3] in ((), (0,), (0, 0)):
            return len(given[0]) if len(given[0]) > count == len(operator.values[0]) else 0
        if operator.name == "embedding":
            places = torch.arange(count, device=given[1].device)
            is_first = given[1].numel() == count and torch.equal(given[1].reshape(-1), places)
            return len(given[0]) if is_first and len(given[0]) > count else 0
        if operator.name not in _SHAPES:
            return 0
        number = operator.makers[0]
    return 0
