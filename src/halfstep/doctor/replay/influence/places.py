"""Values that depend on the place of a sample in its batch, such as positions over the samples.

A table of positions, or a function of counted positions, is added to a tensor whose dimension of
this length is that of the samples: the order of its dimensions is not the one that was meant. Each
sample then gets one vector at all of its positions, by its place in the batch. Layouts are not
known, so the inputs of one sample are replaced by those of another one, which shows the dimension
of the samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.answers import ByPlace
from halfstep.doctor.replay.influence.extent import OfSample
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import losses, place
from halfstep.doctor.replay.influence.samples import count_of_samples, with_other_sample
from halfstep.doctor.replay.memory import storage_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_JOINS = frozenset({"add", "add_", "mul", "mul_"})
_COUNTS = "arange"
_RANDOM = ("rand", "normal", "bernoulli", "dropout", "uniform")


def by_place(forwards: Forwards, sequences: Sequence[torch.Tensor]) -> Iterator[ByPlace]:
    """Yield the operators that join samples to rows of a table by their places in the batch.

    Args:
        forwards: Runs the forward.
        sequences: The inputs that are known to have the shape (samples, positions).
    """
    for loss in losses(forwards.base):
        count = count_of_samples(loss, [*forwards.inputs.values()], sequences)
        if count is None:
            continue
        candidates = [*_candidates(forwards, count)]
        others = with_other_sample(forwards.inputs, (count - 1) // 2, count) if candidates else {}
        changed = forwards.changed(others) if others else None
        if changed is None:
            continue
        of_sample = OfSample((count - 1) // 2, count)
        for operator, at, dims in candidates:
            mask = changed[operator.number][0]
            dim = of_sample.dimension(mask) if mask.any() else None
            maker = operator.makers[at]
            is_fixed = not any(bool(each.any()) for each in changed[maker])
            if is_fixed and dim in dims:
                shape = tuple(operator.given[1 - at].shape)
                yield ByPlace(count, dim, shape, place(operator))
                return


def _candidates(forwards: Forwards, count: int) -> Iterator[tuple[Operator, int, set[int]]]:
    """Yield operators with the argument that may be positions, and its dimensions of this size."""
    operators = forwards.base
    inputs = {storage_key(each) for each in forwards.inputs.values()}
    for operator in operators:
        if operator.name not in _JOINS or len(operator.given) != 2 or not operator.made:
            continue
        made = operator.made[0]
        if not made.is_floating_point() or made.ndim < 3:  # samples, positions, features
            continue
        for at, (tensor, maker) in enumerate(zip(operator.given, operator.makers, strict=True)):
            missing = made.ndim - tensor.ndim
            dims = {missing + each for each, size in enumerate(tensor.shape) if size == count}
            is_broadcast = tensor.numel() < made.numel()
            if dims and is_broadcast and maker != OUTSIDE and _is_part(operators, maker, inputs):
                yield operator, at, dims


def _is_part(operators: Sequence[Operator], end: int, inputs: set[int]) -> bool:
    """Return whether a result is a part of a longer table, or made of counted numbers."""
    waiting, seen = [end], {end}
    counts, size, is_part = False, operators[end].values[0].numel(), False
    while waiting:
        operator = operators[waiting.pop()]
        if any(each in operator.name for each in _RANDOM):
            return False
        counts |= operator.name == _COUNTS
        for tensor, maker in zip(operator.given, operator.makers, strict=True):
            if maker == OUTSIDE:
                if storage_key(tensor) in inputs:
                    return False
                is_part |= tensor.numel() > size
            elif maker not in seen:
                seen.add(maker)
                waiting.append(maker)
    return counts or is_part
