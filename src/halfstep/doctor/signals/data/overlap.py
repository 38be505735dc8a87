"""Samples that a model is evaluated on although it trains on them.

A part of a data set is a `Subset`, or a slice of a tensor. Its samples are those of the whole. An
evaluation on exactly the samples of the training measures the training, and is meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset

from halfstep.doctor.record.passes import Overlap
from halfstep.doctor.record.sites import site

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from halfstep.doctor.record.sites import Mark

_FEWEST = 8  # samples in both
_SHARE = 0.05  # of the evaluated samples


def root_of(data: Any) -> tuple[Any, Sequence[int] | None]:
    """Return the data set of which a `Subset` is a part, and the indices in it; None for all."""
    indices: Sequence[int] | None = None
    while isinstance(data, Subset):
        mine = list(data.indices)
        indices = mine if indices is None else [mine[each] for each in indices]
        data = data.dataset
    return data, indices


def overlap(
    trained: AbstractSet[int],
    evaluations: Mapping[tuple[Mark | None, int], AbstractSet[int]],
    length: int,
) -> Overlap | None:
    """Return the evaluation on a part of the trained samples, unless another one has new samples.

    Args:
        trained: The samples of the training.
        evaluations: The samples of the evaluations, by their line and data set.
        length: Number of all samples.
    """
    found = None
    for (mark, _), samples in evaluations.items():
        both = len(samples & trained)
        if both < _SHARE * len(samples):
            return None  # This is the test, and the others measure the training.
        is_whole = len(samples) == length
        if both >= _FEWEST and samples != trained and not is_whole and found is None:
            found = Overlap(len(samples), len(trained), both, site(mark))
    return found


def mixed(
    trained: AbstractSet[Any], calls: Iterable[tuple[Mark | None, Sequence[Any]]]
) -> Overlap | None:
    """Return the evaluation whose batches contain trained and new samples.

    Args:
        trained: The samples of the training.
        calls: The line and the samples of each batch of an evaluation.
    """
    total, part, both = 0, 0, set[Any]()
    evaluated = set[Any]()
    line = None
    for mark, samples in calls:
        mine = {*samples}
        share = len(mine & trained) / max(1, len(mine))
        total += 1
        if _SHARE <= share <= 1 - _SHARE:
            part += 1
            line = mark
        both |= mine & trained
        evaluated |= mine
    if 2 * part < max(1, total) or len(both) < _FEWEST:
        return None
    return Overlap(len(evaluated), len(trained), len(both), site(line))
