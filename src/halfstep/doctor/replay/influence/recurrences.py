"""Recurrences over a sequence whose state is detached between every two steps.

A recurrence is a parameter that a forward uses again and again, each time with values that depend
on the time before, while each step reads another part of one sequence. If the state is detached
between all steps, and only the last one reaches a loss, gradients do not pass back in time. Solvers
of fixed points, which also keep the gradient of the last step only, read the same input each time;
refinements have a loss for each step.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import DetachedState
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import place
from halfstep.doctor.replay.memory import storage_key
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    import torch

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_FEWEST = 4  # steps
_DETACH = "detach"


@dataclass(slots=True)
class _Passage:
    """What lies between two uses of a parameter.

    Attributes:
        depends: Whether the second one depends on the first.
        detach: The operator that detaches a value of the first one; None without any.
        parts: Where the operators between them read values of the samples that do not depend on
            the first one.
    """

    depends: bool
    detach: Operator | None
    parts: set[tuple[int, int]]


def detached_states(forwards: Forwards) -> Iterator[DetachedState]:
    """Yield the first recurrence of a step whose state is detached between all steps."""
    operators = forwards.base
    reached = _reached(operators, forwards.losses)
    for uses in _uses(operators, forwards.trainable.keys()):
        for run, passages in _runs(operators, uses, forwards.trainable.keys()):
            cuts = [each.detach for each in passages]
            if len(run) < _FEWEST or run[-1] not in reached or not reached.isdisjoint(run[:-1]):
                continue
            if cuts[-1] is not None and None not in cuts and _is_over_sequence(passages):
                yield DetachedState(len(run), place(cuts[-1]))
                return


def _reached(operators: Sequence[Operator], losses: Sequence[int]) -> set[int]:
    """Return the operators to which the losses pass gradients.

    Autograd detaches results that it saves, in the same memory: the argument tells whether it is
    attached, and not the operator that made it last.
    """
    waiting = [each for each in losses if each != OUTSIDE]
    found = set(waiting)
    while waiting:
        operator = operators[waiting.pop()]
        for maker, needed in zip(operator.makers, operator.needed, strict=True):
            if needed and maker != OUTSIDE and maker not in found:
                found.add(maker)
                waiting.append(maker)
    return found


def _uses(operators: Sequence[Operator], trainable: Container[int]) -> list[list[int]]:
    """Return for each parameter of several dimensions the operators that multiply it by values."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for each in operators:
        keys = [storage_key(tensor) for tensor in each.given]
        weights = {
            key
            for key, tensor in zip(keys, each.given, strict=True)
            if key in trainable and tensor.ndim > 1
        }
        values = [
            key
            for key, tensor in zip(keys, each.given, strict=True)
            if key not in trainable and tensor.is_floating_point() and tensor.ndim > 1
        ]
        for key in weights if values else ():
            found[key].append(each.number)
    return [each for each in found.values() if len(each) >= _FEWEST]


def _runs(
    operators: Sequence[Operator], uses: Sequence[int], trainable: Container[int]
) -> Iterator[tuple[list[int], list[_Passage]]]:
    """Yield successive uses of a parameter that each depend on the one before."""
    run, passages = [uses[0]], list[_Passage]()
    for before, after in pairwise(uses):
        passage = _passage(operators, before, after, trainable)
        if not passage.depends:
            yield run, passages
            run, passages = [after], []
            continue
        run.append(after)
        passages.append(passage)
    yield run, passages


def _passage(
    operators: Sequence[Operator], before: int, after: int, trainable: Container[int]
) -> _Passage:
    depending, detach, parts = {before}, None, set[tuple[int, int]]()
    rows = len(operators[after].values[0])
    for operator in operators[before + 1 : after + 1]:
        for tensor, maker, needed in zip(
            operator.given, operator.makers, operator.needed, strict=True
        ):
            if maker in depending:
                depending.add(operator.number)
                made = operators[maker]
                if made.name == _DETACH and any(made.needed) and not needed:
                    detach = made
            elif _is_of_samples(tensor, rows) and storage_key(tensor) not in trainable:
                parts.add((storage_key(tensor), int(tensor.storage_offset())))
    return _Passage(after in depending, detach, parts)


def _is_of_samples(tensor: torch.Tensor, rows: int) -> bool:
    """Return whether a tensor has a row for each sample; a time of all samples is expanded."""
    return tensor.ndim > 0 and tensor.shape[0] == rows > 1 and tensor.stride(0) != 0


def _is_over_sequence(passages: Sequence[_Passage]) -> bool:
    """Return whether each passage reads another part of one tensor than those before."""
    seen = set[tuple[int, int]]()
    common: set[int] | None = None
    for each in passages:
        fresh = {key for key, _ in each.parts - seen}
        common = fresh if common is None else common & fresh
        seen |= each.parts
    return bool(common)
