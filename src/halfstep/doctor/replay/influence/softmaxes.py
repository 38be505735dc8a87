"""Softmaxes whose results go into a loss, and that do not normalise over the classes.

A softmax may be computed by hand: the score of the target's class minus a logarithm of the sum of
exponentials. The dimension of the classes is then the one along which the score was picked, as it
is where the probability of a class or an action is picked. A loss may also multiply the
probabilities by targets, as an overlap of regions does: then the dimension of the classes is the
one along which the targets have a single 1, or shares that add up to 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.influence import WrongSoftmax
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import losses, place
from halfstep.doctor.replay.influence.samples import count_of_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss

_ROUNDING = 1e-2  # of shares in a half format
_LOG, _PLAIN = "_log_softmax", "_softmax"
_COPIES = frozenset({"_to_copy", "alias", "clone", "detach"})
_ELEMENTWISE = _COPIES | {"add", "clamp", "clamp_min", "div", "log", "mul", "neg"}
_SUM, _PICKS = "logsumexp", frozenset({"gather", "index"})
_DIFFERENCES = frozenset({"rsub", "sub"})
_MEETINGS = frozenset({"binary_cross_entropy", "mse_loss", "mul", *_DIFFERENCES})
_SHAPES = frozenset(
    {"_to_copy", "alias", "detach", "expand", "select", "squeeze", "unsqueeze", "view"}
)


def wrong_softmaxes(forwards: Forwards) -> Iterator[WrongSoftmax]:
    """Yield the softmaxes over other dimensions than that of the classes."""
    for loss in losses(forwards.base):
        for operator, classes in _softmaxes(forwards.base, loss.maker, _classes(loss)):
            shape, dim = operator.given[0].shape, int(operator.args[1])
            dim %= max(1, len(shape))
            if len(shape) < 2 or len(set(shape[:2])) == 1 or dim == classes:
                continue  # a matrix of each sample with each other one may be normalised either way
            if (loss.is_of_classes and operator.name == _LOG) or (
                dim == 0 and len(shape) == 2 and _is_batch(forwards, loss, shape[0])
            ):
                yield WrongSoftmax(dim, classes, loss.operator.name, place(operator))
    yield from _picked(forwards.base)
    yield from _by_hand(forwards.base)
    yield from _beside_targets(forwards.base)


def _beside_targets(operators: Sequence[Operator]) -> Iterator[WrongSoftmax]:
    """Yield the softmaxes whose results meet targets that are shares of another dimension."""
    for each in operators:
        if each.name not in _MEETINGS or len(each.given) != 2 or sum(each.needed) != 1:
            continue
        at = each.needed.index(True)
        targets = each.given[1 - at]
        if targets.shape != each.given[at].shape or (classes := _shared(targets)) is None:
            continue
        found = _softmax(operators, each.makers[at])
        if found is None:
            continue
        dim = int(found.args[1]) % max(1, found.given[0].ndim)
        scores = found.given[0]
        if scores.shape != targets.shape or dim == classes:
            continue
        # What a model chooses itself, as a router does, is no target.
        if not torch.equal(scores.argmax(classes), targets.float().argmax(classes)):
            yield WrongSoftmax(dim, classes, each.name, place(found))
            return


def _shared(targets: torch.Tensor) -> int | None:
    """Return the only dimension along which tensors have a single 1, or shares of it."""
    if targets.ndim < 2 or bool((targets < 0).any()):
        return None
    sums = [(targets.sum(at, dtype=torch.float32) - 1).abs() for at in range(targets.ndim)]
    fits = [at for at, each in enumerate(sums) if targets.shape[at] > 1 and each.max() < _ROUNDING]
    return fits[0] if len(fits) == 1 else None


def _softmax(operators: Sequence[Operator], number: int) -> Operator | None:
    """Return the softmax between which and a result each element is computed by itself."""
    while number != OUTSIDE:
        operator = operators[number]
        if operator.name in {_LOG, _PLAIN}:
            return operator
        if operator.name not in _ELEMENTWISE or len(operator.given) != 1:
            return None
        number = operator.makers[0]
    return None


def _picked(operators: Sequence[Operator]) -> Iterator[WrongSoftmax]:
    """Yield the softmaxes over the rows of scores, one class of each of which is picked."""
    for each in operators:
        if each.name not in _PICKS or not each.needed[0] or each.given[0].ndim != 2:
            continue
        classes = _picked_from(each)
        if classes is None or (each.name == "gather" and each.given[1].shape[classes] != 1):
            continue
        for operator, dim in _softmaxes(operators, each.makers[0], classes):
            shape = operator.given[0].shape
            over = int(operator.args[1]) % max(1, len(shape))
            if len(shape) == 2 and over != dim and shape[0] != shape[1]:
                yield WrongSoftmax(over, dim, each.name, place(operator))
                return


def _by_hand(operators: Sequence[Operator]) -> Iterator[WrongSoftmax]:
    """Yield the normalisers over dimensions without that of the classes."""
    for each in operators:
        if each.name not in _DIFFERENCES or len(each.given) != 2 or not all(each.needed):
            continue
        ends = [_source(operators, maker) for maker in each.makers]
        picked = next((one for one in ends if one is not None and one.name in _PICKS), None)
        summed = next((one for one in ends if one is not None and one.name == _SUM), None)
        if picked is None or summed is None:
            continue
        scores = summed.given[0]
        classes, dims = _picked_from(picked), [each % scores.ndim for each in summed.args[1]]
        is_same = picked.given[0].shape == scores.shape and picked.makers[0] == summed.makers[0]
        if is_same and classes is not None and classes not in dims and len({*scores.shape[:2]}) > 1:
            yield WrongSoftmax(dims[0], classes, each.name, place(summed))


def _source(operators: Sequence[Operator], number: int) -> Operator | None:
    """Return the operator that picks scores, or that sums them, through changes of the shape."""
    end = None
    while number != OUTSIDE:
        operator = operators[number]
        if operator.name == _SUM:
            return operator
        if operator.name in _PICKS:  # A normaliser may be picked as well, after it was expanded.
            end = operator
        elif operator.name not in _SHAPES:
            break
        number = operator.makers[0]
    return end


def _picked_from(operator: Operator) -> int | None:
    """Return the dimension of the classes; None if it is not known."""
    scores = operator.given[0]
    if operator.name == "gather":
        return int(operator.args[1]) % scores.ndim
    return 1 if scores.ndim == 2 and len(operator.given) == 3 else None


def _classes(loss: Loss) -> int:
    return 1 if loss.is_of_classes else loss.predictions.ndim - 1


def _is_batch(forwards: Forwards, loss: Loss, count: int) -> bool:
    return count_of_samples(loss, [*forwards.inputs.values()], ()) == count


def _softmaxes(
    operators: Sequence[Operator], number: int, classes: int
) -> Iterator[tuple[Operator, int]]:
    """Yield the softmaxes between which and a result each element is computed by itself.

    With each comes the dimension of the classes in its result. What is normalised over the classes
    at last, may have been normalised over the samples before, as in a matching of both.
    """
    while number != OUTSIDE:
        operator = operators[number]
        if operator.name in {_LOG, _PLAIN}:
            yield operator, classes
            if int(operator.args[1]) % max(1, operator.given[0].ndim) == classes:
                return
        elif operator.name not in _ELEMENTWISE or not _is_of_one(operators, operator):
            before = _before_move(operator, classes)
            if before is None:
                return
            classes = before
        number = operator.makers[0]


def _is_of_one(operators: Sequence[Operator], operator: Operator) -> bool:
    """Return whether an operator has one tensor, or divides it by its own sum."""
    makers = operator.makers
    if len(makers) != 2 or operator.name != "div" or makers[1] == OUTSIDE:
        return len(makers) == 1
    divisor = operators[makers[1]]
    return divisor.name == "sum" and divisor.makers[0] == makers[0]


def _before_move(operator: Operator, dim: int) -> int | None:
    """Return which dimension of its input an operator moves to a place; None if it does not."""
    if len(operator.given) != 1:
        return None
    given, made = operator.given[0].shape, operator.made[0].shape
    before = None
    if operator.name == "permute":
        before = int(operator.args[1][dim])
    elif operator.name == "t":
        before = -1 - dim
    elif operator.name == "transpose":
        ends = [each % len(given) for each in operator.args[1:3]]
        before = ends[1 - ends.index(dim)] if dim in ends else dim
    elif operator.name in {"view", "_unsafe_view"}:
        if given[: dim + 1] == made[: dim + 1]:
            before = dim
        elif dim == len(made) - 1 and given[-1:] == made[-1:]:
            before = -1
    return None if before is None else before % len(given)
