"""Whether the output for a sample depends on other samples of the batch, and where they mix.

The inputs of one sample are replaced by those of another one. Many models mix samples on purpose:
graphs, contrastive losses, statistics of a batch. So samples count as mixed by mistake only if the
first operator that mixes them is a view that cuts samples apart, or belongs to a layer of torch
that takes the samples for the positions of a sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record.influence import Mixing
from halfstep.doctor.replay.influence.extent import (
    BEYOND,
    UNKNOWN,
    OfSample,
    extents,
    sources,
)
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import Loss, losses, mask_of, place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halfstep.doctor.bundle.caller import Caller
    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

FEWEST = 3
"""In a batch of two samples, halves of features can be taken for samples."""
_SEQUENCE = frozenset(
    {
        "LSTM",
        "GRU",
        "RNN",
        "MultiheadAttention",
        "TransformerEncoderLayer",
        "TransformerDecoderLayer",
    }
)
_THROUGH = frozenset({BEYOND, UNKNOWN})
_VIEWS = frozenset({"view", "_unsafe_view", "reshape"})


def mixing(forwards: Forwards, sequences: Sequence[torch.Tensor]) -> Mixing | None:
    """Return how a step mixes samples by mistake; None if it does not, or if this is not known.

    Args:
        forwards: Runs the forward.
        sequences: The inputs that are known to have the shape (samples, positions).
    """
    given = [*forwards.inputs.values()]
    for loss in losses(forwards.base):
        dim, count = 0, count_of_samples(loss, given, sequences)
        if count is None and not sequences:
            dim, count = 1, _count_after_positions(loss, given)
        if count is None:
            continue
        found = _mixed(forwards, loss, count, dim)
        if found is not None:
            return found
    ways = (_mixed(forwards, *each, dim=1) for each in _alignments(forwards.base, given))
    return next((each for each in ways if each is not None), None)


def _alignments(
    operators: Sequence[Operator], given: Sequence[torch.Tensor]
) -> Iterator[tuple[Loss, int, int]]:
    """Yield CTC losses, their numbers of samples, and the dimension of these in the inputs.

    The predictions of such a loss have the shape (positions, samples, classes).
    """
    for each in operators:
        if not each.name.endswith("_ctc_loss") or each.makers[0] == OUTSIDE:
            continue
        predictions, targets, *_ = each.given
        count = predictions.shape[1] if predictions.ndim == 3 else 0
        dims = {one.shape.index(count) for one in given if one.shape.count(count) == 1}
        if len(dims) == 1 and max(dims) < 2 and count >= FEWEST:
            yield Loss(each, each.makers[0], predictions, targets), count, max(dims)


def count_of_samples(
    loss: Loss, given: Sequence[torch.Tensor], sequences: Sequence[torch.Tensor]
) -> int | None:
    """Return the number of samples, if the first dimension of the inputs is theirs.

    Args:
        loss: The loss.
        given: The inputs of models.
        sequences: The inputs that are known to have the shape (samples, positions).

    Returns:
        The number; None if it is less than `FEWEST`, or if the dimension is not certain. It is
        certain if there is one target, or one row of targets, for each of its indices, and the
        second dimension cannot be meant: inputs may also have the shape
        (positions, samples).
    """
    targets = loss.targets
    if not targets.ndim:
        return None
    if sequences and targets.numel() % sequences[0].shape[0] == 0:
        return _at_least(sequences[0].shape[0])
    count = targets.shape[0]
    inputs = [each for each in given if each.ndim >= 2 and each.shape[0] == count]
    seconds = {each.shape[1] for each in inputs if each.ndim > 2 or not each.is_floating_point()}
    ambiguous = {*targets.shape[1:2], *([count] if targets.ndim == 1 else [])}
    if not inputs or seconds & ambiguous or loss.predictions.shape[0] != count:
        return None
    if loss.predictions.shape.numel() == count * count:  # each sample with each other one
        return None
    return _at_least(count)


def _count_after_positions(loss: Loss, given: Sequence[torch.Tensor]) -> int | None:
    """Return the number of samples, if inputs have the shape (positions, samples, ...).

    There is one target, or one row of targets, for each index of the second dimension of all
    inputs, and no other dimension can be meant.
    """
    targets, predictions = loss.targets, loss.predictions
    if not targets.ndim or not given or predictions.shape[0] != targets.shape[0]:
        return None
    count = targets.shape[0]
    for each in given:
        is_sequence = each.ndim > 2 or (each.ndim == 2 and not each.is_floating_point())
        if not is_sequence or each.shape[1] != count or each.shape.count(count) != 1:
            return None
        if each.shape[0] in targets.shape:
            return None
    return None if predictions.shape.numel() == count * count else _at_least(count)


def _at_least(count: int) -> int | None:
    return count if count >= FEWEST else None


def _mixed(
    forwards: Forwards, loss: Loss, count: int, given_dim: int, dim: int = 0
) -> Mixing | None:
    """Return how the samples are mixed; they are in `dim` of the predictions."""
    if not any(_may_mix(each, count, given_dim) for each in forwards.base):
        return None
    sample = (count - 1) // 2
    others = with_other_sample(forwards.inputs, sample, count, given_dim)
    changed = forwards.changed(others) if others else None
    if changed is None:
        return None
    mask = mask_of(changed, loss.maker, loss.predictions)
    if mask is None or mask.shape[dim] % count:
        return None
    mask = mask.movedim(dim, 0)
    width = mask.shape[0] // count
    rows = mask.flatten(1) if mask.ndim > 1 else mask[:, None]
    reached = {int(each) // width for each in rows.any(1).nonzero().flatten()}
    if not reached - {sample}:
        return None
    of_sample = OfSample(sample, count)
    known = extents(forwards.base, changed, of_sample)
    first = [each for each, _ in sources(forwards.base, known, loss.operator.number, _THROUGH)]
    ways = [_way(forwards.base, each, count, given_dim) for each in first]
    if not ways or None in ways:
        return None
    how, given = ways[0] or ("", ())
    mixed = tuple(sorted(reached - {sample}))
    return Mixing(count, sample, mixed, sample in reached, how, given, place(first[0]))


def _may_mix(operator: Operator, count: int, dim: int) -> bool:
    """Return whether an operator can mix samples by mistake; most forwards have none that can."""
    if operator.caller.module_kind in _SEQUENCE:
        return dim == 0 and any(each.ndim == 3 and len(each) == count for each in operator.given)
    if operator.name not in _VIEWS:
        return False
    given, made = operator.given[0].shape, operator.values[0].shape
    if not given or not made:
        return False
    merges = given[0] == count and made[0] % count == 0
    splits = len(given) == 2 and made[0] == count
    return not (merges or splits or given[0] == made[0])


def _way(
    operators: Sequence[Operator], operator: Operator, count: int, dim: int
) -> tuple[str, tuple[int, ...]] | None:
    """Return how an operator mixes samples, and the shape of what it mixes; None if on purpose."""
    caller = operator.caller
    if caller.module_kind in _SEQUENCE:
        if dim:  # The layer may take the samples from there.
            return None
        given = [one for each in operators if _is_of(each, caller) for one in each.given]
        shapes = [tuple(each.shape) for each in given if each.ndim == 3 and len(each) == count]
        # A batch as a sequence of one sample is meant, and so is an input of two dimensions.
        return ("sequence", shapes[0]) if shapes and shapes[0][1] > 1 else None
    return ("reshape", tuple(operator.given[0].shape)) if operator.name in _VIEWS else None


def _is_of(operator: Operator, caller: Caller) -> bool:
    mine = operator.caller
    return (mine.module, mine.user_line) == (caller.module, caller.user_line)


def with_other_sample(
    given: Mapping[Any, torch.Tensor], sample: int, count: int, dim: int = 0
) -> dict[Any, torch.Tensor]:
    """Return the inputs with those of another sample in place of those of one.

    Args:
        given: The inputs.
        sample: The sample that is replaced.
        count: Number of samples.
        dim: Their dimension.
    """
    mine = {
        key: each for key, each in given.items() if each.ndim > dim and each.shape[dim] == count
    }
    for other in range(count - 1, -1, -1):
        if any(
            not torch.equal(each.select(dim, sample), each.select(dim, other))
            for each in mine.values()
        ):
            return {key: _replaced(each, sample, other, dim) for key, each in mine.items()}
    return {}


def _replaced(tensor: torch.Tensor, sample: int, other: int, dim: int) -> torch.Tensor:
    copy = tensor.detach().clone()
    copy.select(dim, sample).copy_(tensor.select(dim, other))
    return copy
