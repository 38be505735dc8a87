"""Losses that models compute in their own forward, and that get probabilities or broadcast.

The loop's own calls are heard while the program runs. Those inside of models are read from the
operators of the last step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record import Broadcast, Call
from halfstep.doctor.record.sites import site
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import losses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss

_BINARY = "binary_cross_entropy_with_logits"
_CLASSES, _LOGARITHMS = "cross_entropy", "nll_loss"
_SHAPES = frozenset(
    {
        *("_to_copy", "_unsafe_view", "alias", "clone", "detach", "permute", "select", "slice"),
        *("squeeze", "t", "transpose", "unsqueeze", "view"),
    }
)
_COMPARES = frozenset({"huber_loss", "mse_loss", "rsub", "smooth_l1_loss", "sub"})
_REDUCED = frozenset({"huber_loss", "mse_loss", "smooth_l1_loss"})
_ELEMENTWISE = frozenset(
    {
        *("_to_copy", "abs", "add", "clamp", "clamp_min", "cosh", "div", "exp", "log", "log1p"),
        *("maximum", "mul", "neg", "pow", "relu", "sqrt", "square", "where"),
    }
)
_TOTALS = frozenset({"mean", "sum"})


def inner_losses(forwards: Forwards) -> Iterator[Call]:
    """Yield the losses inside of models that get probabilities, or arguments that broadcast."""
    for loss in losses(forwards.base):
        if loss.operator.caller.module_kind:
            yield from _of_probabilities(forwards.base, loss)
    for each in forwards.base:
        if each.name in _COMPARES and each.caller.module_kind and len(each.given) == 2:
            if not _trains(each):
                continue
            found = _broadcast(forwards.base, each)
            if found is not None and _is_total(forwards.base, each):
                yield _call(each.name, each, broadcast=found)


def _trains(operator: Operator) -> bool:
    """Return whether a result has gradients: a metric under `torch.no_grad()` has none."""
    return any(each.requires_grad for each in operator.made)


def _call(
    name: str,
    operator: Operator,
    classes: int = 0,
    *,
    sigmoid: bool = False,
    broadcast: Broadcast | None = None,
) -> Call:
    line = site(operator.caller.user_line)
    return Call(
        name,
        (),
        "",
        gradients=True,
        autocast="",
        count=1,
        site=line,
        classes=classes,
        sigmoid=sigmoid,
        broadcast=broadcast,
    )


def _of_probabilities(operators: Sequence[Operator], loss: Loss) -> Iterator[Call]:
    source = _source(operators, loss.maker)
    if loss.operator.name == _BINARY:
        if source is not None and source.name in {"_softmax", "sigmoid"}:
            yield _call(_BINARY, loss.operator, 1)
        return
    if not loss.is_of_classes or source is None:
        return
    classes = loss.predictions.shape[min(1, loss.predictions.ndim - 1)]
    if source.name == "_softmax" and _is_over(source, classes):
        yield _call(_LOGARITHMS, loss.operator, classes)
    elif source.name == "_log_softmax":
        before = _source(operators, source.makers[0])
        if before is None:
            return
        if before.name == "sigmoid" or (before.name == "_softmax" and _is_over(before, classes)):
            yield _call(_CLASSES, loss.operator, classes, sigmoid=before.name == "sigmoid")


def _is_over(softmax: Operator, classes: int) -> bool:
    """Return whether a softmax may normalise over the classes: a wrong one is another mistake."""
    return bool(softmax.given[0].shape[int(softmax.args[1])] == classes)


def _source(operators: Sequence[Operator], number: int) -> Operator | None:
    """Return the operator that computed the values of a result, before changes of its shape."""
    while number != OUTSIDE and operators[number].name in _SHAPES:
        number = operators[number].makers[0]
    return None if number == OUTSIDE else operators[number]


def _broadcast(operators: Sequence[Operator], operator: Operator) -> Broadcast | None:
    """Return the shapes of outputs and targets that broadcast although they have as many elements.

    A loss of torch expands both first. Another dimension that was made on purpose is none of these.
    """
    given, makers = [*operator.given], [*operator.makers]
    by = [None if each == OUTSIDE else operators[each] for each in makers]
    expands = [each is not None and each.name == "expand" for each in by]
    if any(expands):
        if not all(expands):
            return None
        given = [each.given[0] for each in by if each is not None]
        makers = [each.makers[0] for each in by if each is not None]
    one, other = given
    if sum(operator.needed) != 1 or one.ndim == other.ndim or one.numel() != other.numel():
        return None
    if any(_gains(operators, each) for each in makers):
        return None
    at = operator.needed.index(False)
    outputs, targets = given[1 - at], given[at]
    if makers[1 - at] == OUTSIDE or bool((targets == targets.flatten()[0]).all()):
        return None
    together = tuple(operator.given[0].shape if any(expands) else operator.values[0].shape)
    if math.prod(together) == outputs.numel():
        return None
    return Broadcast(tuple(outputs.shape), tuple(targets.shape), together, at)


def _gains(operators: Sequence[Operator], number: int) -> bool:
    """Return whether a result was given another dimension."""
    if number == OUTSIDE:
        return False
    operator = operators[number]
    return operator.name in {"unsqueeze", "view"} and operator.given[0].ndim < operator.made[0].ndim


def _is_total(operators: Sequence[Operator], operator: Operator) -> bool:
    """Return whether all elements of a difference go into one number."""
    if operator.name in _REDUCED and not operator.values[0].ndim:
        return True
    waiting, seen = [operator.number], {operator.number}
    while waiting:
        number = waiting.pop()
        for each in operators[number + 1 :]:
            if number not in each.makers or each.number in seen:
                continue
            if each.name in _TOTALS and not each.values[0].ndim:
                return True
            if each.name in _ELEMENTWISE:
                seen.add(each.number)
                waiting.append(each.number)
    return False
