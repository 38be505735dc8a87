"""Softmaxes whose results go into a loss, and that do not normalise over the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import WrongSoftmax
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import losses, place
from halfstep.doctor.replay.influence.samples import count_of_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss

_LOG, _PLAIN = "_log_softmax", "_softmax"
_ELEMENTWISE = frozenset(
    {"_to_copy", "add", "alias", "clamp", "clamp_min", "clone", "detach", "log", "mul", "neg"}
)


def wrong_softmaxes(forwards: Forwards) -> Iterator[WrongSoftmax]:
    """Yield the softmaxes over other dimensions than that of the classes."""
    for loss in losses(forwards.base):
        for operator in _softmaxes(forwards.base, loss):
            shape, dim = operator.given[0].shape, int(operator.args[1])
            dim %= max(1, len(shape))
            if len(shape) < 2 or len(set(shape[:2])) == 1 or dim == _classes(loss):
                continue  # a matrix of each sample with each other one may be normalised either way
            if (loss.is_of_classes and operator.name == _LOG) or (
                dim == 0 and len(shape) == 2 and _is_batch(forwards, loss, shape[0])
            ):
                yield WrongSoftmax(dim, 1, loss.operator.name, place(operator))


def _classes(loss: Loss) -> int:
    return 1 if loss.is_of_classes else loss.predictions.ndim - 1


def _is_batch(forwards: Forwards, loss: Loss, count: int) -> bool:
    return count_of_samples(loss, [*forwards.inputs.values()], ()) == count


def _softmaxes(operators: Sequence[Operator], loss: Loss) -> Iterator[Operator]:
    """Yield the softmaxes between which and a loss each element is computed by itself."""
    number = loss.maker
    while number != OUTSIDE:
        operator = operators[number]
        if operator.name in {_LOG, _PLAIN}:
            yield operator
        elif operator.name not in _ELEMENTWISE or len(operator.given) != 1:
            return
        number = operator.makers[0]
