"""Regressions whose targets the last activation of the model cannot give."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import OutOfReach
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import OF_CLASSES, losses, place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_RANGES = {
    **dict.fromkeys(("relu", "relu_", "softplus", "exp", "exp_"), (0.0, math.inf)),
    **dict.fromkeys(("sigmoid", "sigmoid_", "_softmax"), (0.0, 1.0)),
    **dict.fromkeys(("tanh", "tanh_"), (-1.0, 1.0)),
}
_VIEWS = frozenset(
    {
        *("_to_copy", "_unsafe_view", "alias", "detach", "select", "slice", "squeeze", "t"),
        *("unsqueeze", "view"),
    }
)
_REGRESSIONS = frozenset({"huber_loss", "mse_loss", "smooth_l1_loss", "sub", "rsub"})
_BEYOND = 0.05
"""How far beyond the range a target counts, relative to the spread of the targets."""


def out_of_reach(forwards: Forwards) -> Iterator[OutOfReach]:
    """Yield the regressions with targets beyond the range of the model's last operator."""
    for loss in losses(forwards.base):
        if loss.operator.name in OF_CLASSES or loss.operator.name not in _REGRESSIONS:
            continue
        last = _activation(forwards.base, loss.maker)
        targets = loss.targets
        if last is None or not targets.is_floating_point() or targets.numel() < 2:
            continue
        low, high = _RANGES[last.name]
        margin = _BEYOND * float(targets.std())
        beyond = (targets < low - margin) | (targets > high + margin)
        if bool(beyond.any()):
            share = float(beyond.double().mean())
            limits = float(targets.min()), float(targets.max())
            yield OutOfReach(last.name.strip("_"), low, high, *limits, share, place(last))


def _activation(operators: Sequence[Operator], number: int) -> Operator | None:
    """Return the operator with a limited range that makes the predictions, through views."""
    while number != OUTSIDE:
        operator = operators[number]
        if operator.name in _RANGES:
            return operator
        if operator.name not in _VIEWS or not operator.makers:
            return None
        number = operator.makers[0]
    return None
