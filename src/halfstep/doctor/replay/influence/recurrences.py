"""Recurrences over a sequence whose state is detached between every two steps.

A recurrence is a parameter that a forward uses again and again, each time with values that depend
on the time before, while each step reads another part of one sequence. If the state is detached
between all steps, and only the last one reaches a loss, gradients do not pass back in time. Solvers
of fixed points, which also keep the gradient of the last step only, read the same input each time;
refinements have a loss for each step, with the same targets. If each step has targets of its own,
gradients do not pass back either, unless the state is itself the prediction, as in a rollout.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.influence import DetachedState
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import losses, picked, place
from halfstep.doctor.replay.memory import storage_key
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_FEWEST = 4  # steps
_DETACH = "detach"
_COPIES = frozenset({"clone", "copy_", "_to_copy"})


@dataclass(slots=True)
class _Passage:
    """What lies between two uses of a parameter.

    Attributes:
        depends: Whether the second one depends on the first.
        detach: The operator that detaches a value of the first one; None without any.
        cut: Number of the operator that made this value.
        parts: Where the operators between them read values of the samples that do not depend on
            the first one.
    """

    depends: bool
    detach: Operator | None
    cut: int
    parts: set[tuple[int, int]]


def detached_states(forwards: Forwards) -> Iterator[DetachedState]:
    """Yield the first recurrence of a step whose state is detached between all steps."""
    operators, trainable = forwards.base, forwards.trainable.keys()
    reached = _reached(operators, forwards.losses)
    for uses in _uses(operators, trainable):
        for run, passages in _runs(operators, uses, trainable):
            if len(run) < _FEWEST or run[-1] not in reached:
                continue
            ends = [each for each in run if each in reached]
            # The steps before these may be those of an earlier iteration.
            tail = passages if len(ends) == 1 else passages[1 - len(ends) :]
            last = tail[-1]
            if last.detach is None or any(each.detach is None for each in tail):
                continue
            is_judged = len(ends) == 1 or (
                ends == run[-len(ends) :]
                and _have_own_targets(forwards, len(ends), len(operators[run[-1]].values[0]))
                and last.cut not in _predicted(operators, trainable)
            )
            if is_judged and _is_over_sequence(tail):
                yield DetachedState(len(tail) + 1, len(ends), place(last.detach))
                return


def _have_own_targets(forwards: Forwards, steps: int, rows: int) -> bool:
    """Return whether each step has targets, and not all have the same ones."""
    targets = [each.targets for each in (*losses(forwards.base), *picked(forwards.base))]
    # Beside the losses, a cell may subtract its first state from another value.
    shapes = Counter(each.shape for each in targets)
    alike = [each for each in targets if each.shape == max(shapes, key=lambda one: shapes[one])]
    if steps < _FEWEST or len(alike) >= steps:
        return steps >= _FEWEST and any(not torch.equal(each, alike[0]) for each in alike)
    for each in targets:
        if each.numel() and each.numel() % (steps * rows) == 0:
            by_step, by_row = each.reshape(steps, rows, -1), each.reshape(rows, steps, -1)
            is_one = (by_step == by_step[:1]).all() | (by_row == by_row[:, :1]).all()
            return not bool(is_one)
    return False


def _predicted(operators: Sequence[Operator], trainable: Container[int]) -> set[int]:
    """Return the operators whose results reach a loss without a parameter between."""
    waiting = [each.maker for each in losses(operators)]
    found = set[int]()
    while waiting:
        number = waiting.pop()
        if number != OUTSIDE and number not in found:
            found.add(number)
            if not any(storage_key(each) in trainable for each in operators[number].given):
                waiting += operators[number].makers
    return found


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
    depending, detach, cut, parts = {before}, None, OUTSIDE, set[tuple[int, int]]()
    rows = len(operators[after].values[0])
    for operator in operators[before + 1 : after + 1]:
        for tensor, maker, needed in zip(
            operator.given, operator.makers, operator.needed, strict=True
        ):
            if maker in depending:
                depending.add(operator.number)
                made = operators[maker]
                if needed or not any(made.needed):
                    continue
                if made.name == _DETACH or made.name in _COPIES:
                    detach, cut = made, made.makers[-1]
                elif any(each.requires_grad for each in made.made):  # It is the `.data` of one.
                    detach, cut = operator, maker
            elif _is_of_samples(tensor, rows) and storage_key(tensor) not in trainable:
                parts.add((storage_key(tensor), int(tensor.storage_offset())))
    return _Passage(after in depending, detach, cut, parts)


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
