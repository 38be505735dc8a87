"""Predictions in another order than the targets, because a model sorts or permutes its samples.

The inputs of one sample are replaced by those of another one, and only the predictions in another
row change. Inputs and targets must be known to be in the same order: those of one batch of a data
loader, or rows that the loop takes with the same indices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.doctor.record.influence import Reordered
from halfstep.doctor.replay.influence.losses import losses, mask_of, place
from halfstep.doctor.replay.influence.samples import count_of_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss

_ORDERS = frozenset({"flip", "gather", "index", "index_select", "roll", "sort", "take"})
_RUNS = 6
_MOVED = 2  # samples


def reordered(
    forwards: Forwards, correspond: Callable[[torch.Tensor, torch.Tensor], bool]
) -> Iterator[Reordered]:
    """Yield the order of the predictions, if that of the targets is another one.

    Args:
        forwards: Runs the forward.
        correspond: Returns whether the rows of inputs and targets are known to be in one order.
    """
    found = []
    for loss in losses(forwards.base):
        targets = loss.operator.given[1 - loss.operator.needed.index(True)]
        mine = {key: each for key, each in forwards.inputs.items() if correspond(each, targets)}
        count = count_of_samples(loss, [*mine.values()], ())
        if count is None or not any(_may_move(each, count) for each in forwards.base):
            return
        key = max(mine, key=lambda each: mine[each].numel())
        moved = _moved(forwards, loss, key, count)
        if moved is None:
            return
        found.append(moved)
    yield from found[:1]


def _may_move(operator: Operator, count: int) -> bool:
    return (
        operator.name in _ORDERS
        and bool(operator.values and operator.values[0].ndim)
        and len(operator.values[0]) == count
    )


def _moved(forwards: Forwards, loss: Loss, key: Any, count: int) -> Reordered | None:
    """Return a sample whose prediction is in another row, if so for most of those examined."""
    tokens, at = forwards.inputs[key], None
    moved: dict[int, int] = {}
    stayed = 0  # by chance: a sample may be sorted into its own row
    for run in range(_RUNS):
        sample, other = run * count // _RUNS, (run * count // _RUNS + 1 + run % 2) % count
        if bool((tokens[sample] == tokens[other]).all()):
            continue
        replaced = tokens.detach().clone()
        replaced[sample] = tokens[other]
        changed = forwards.changed({key: replaced})
        mask = None if changed is None else mask_of(changed, loss.maker, loss.predictions)
        if changed is None or mask is None:
            return None
        rows = _rows(mask)
        stayed += rows == [sample]
        if stayed > 1 or (sample in rows and len(rows) > 1):
            return None
        if len(rows) == 1 and rows != [sample]:
            moved[sample] = rows[0]
            at = at or _first(forwards.base, changed, rows)
        if len(moved) >= _MOVED and len(moved) > 2 * stayed:
            first = next(iter(moved))
            return Reordered(count, first, moved[first], place(at or loss.operator), loss.site)
    return None


def _rows(mask: torch.Tensor) -> list[int]:
    rows = mask.flatten(1).any(1) if mask.ndim > 1 else mask
    return [int(each) for each in rows.nonzero().flatten()]


def _first(
    operators: Sequence[Operator], changed: Sequence[Sequence[torch.Tensor]], rows: list[int]
) -> Operator | None:
    """Return the first operator that puts a sample into another row."""
    for each in operators:
        if each.name in _ORDERS and any(
            mask.ndim and _rows(mask) == rows for mask in changed[each.number]
        ):
            return each
    return None
