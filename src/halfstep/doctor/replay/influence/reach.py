"""Regressions whose targets the last activation of the model cannot give."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.influence import OutOfReach
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import losses, place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_Range = tuple[float, float]
_RANGES: dict[str, _Range] = {
    **dict.fromkeys(("relu", "relu_", "softplus", "exp", "exp_"), (0.0, math.inf)),
    **dict.fromkeys(("abs", "sqrt"), (0.0, math.inf)),
    **dict.fromkeys(("sigmoid", "sigmoid_", "_softmax", "hardsigmoid"), (0.0, 1.0)),
    **dict.fromkeys(("tanh", "tanh_", "erf", "sin", "cos"), (-1.0, 1.0)),
    **dict.fromkeys(("silu", "silu_"), (-0.2785, math.inf)),
    "gelu": (-0.17, math.inf),
    "mish": (-0.3089, math.inf),
    "atan": (-math.pi / 2, math.pi / 2),
}
_LIMITED = frozenset({"hardtanh", "hardtanh_", "clamp", "clamp_min", "clamp_max", "elu", "elu_"})
"""Operators whose range is in their arguments."""
_SCALINGS = frozenset(
    {
        *("add", "add_", "div", "div_", "mul", "mul_", "neg", "reciprocal", "rsub", "sub"),
        "sub_",
    }
)
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
    """Yield the regressions with targets beyond the range of the model's last operator.

    The clipped values of a policy's update stand beside others that have the same targets.
    """
    regressions = [each for each in losses(forwards.base) if each.operator.name in _REGRESSIONS]
    ends = [_activation(forwards.base, each.maker) for each in regressions]
    reached = [each.targets for each, end in zip(regressions, ends, strict=True) if end[0] is None]
    for loss, (last, scalings) in zip(regressions, ends, strict=True):
        targets = loss.targets
        if last is None or any(torch.equal(targets, each) for each in reached):
            continue
        if not targets.is_floating_point() or targets.numel() < 2:
            continue
        low, high = _range(last)
        for each in reversed(scalings):
            low, high = _scaled(each, low, high)
        margin = _BEYOND * float(targets.std())
        if not _contains(low - margin, high + margin, loss.predictions):
            continue  # another factor, such as alpha of add(), scales it, too
        beyond = (targets < low - margin) | (targets > high + margin)
        if bool(beyond.any()):
            share = float(beyond.double().mean())
            limits = float(targets.min()), float(targets.max())
            name, is_scaled = last.name.strip("_"), bool(scalings)
            yield OutOfReach(name, low, high, *limits, share, place(last), is_scaled)


def _activation(
    operators: Sequence[Operator], number: int
) -> tuple[Operator | None, list[Operator]]:
    """Return the operator with a limited range that makes the predictions, through views.

    Returns:
        The operator, or None, and the operators after it that scale and shift its result by
        constants, the last one first.
    """
    scalings: list[Operator] = []
    while number != OUTSIDE:
        operator = operators[number]
        if operator.name in _RANGES or operator.name in _LIMITED or _is_even_power(operator):
            return operator, scalings
        at = 0
        if operator.name in _SCALINGS and sum(operator.needed) == 1:
            at = operator.needed.index(True)
            scalings.append(operator)
        elif operator.name not in _VIEWS or not operator.makers:
            break
        number = operator.makers[at]
    return None, []


def _contains(low: float, high: float, predictions: torch.Tensor) -> bool:
    return bool(((predictions >= low) & (predictions <= high)).all())


def _is_even_power(operator: Operator) -> bool:
    exponent = operator.args[1] if operator.name == "pow" and len(operator.args) > 1 else None
    return isinstance(exponent, float | int) and exponent % 2 == 0 and exponent > 0


def _range(operator: Operator) -> _Range:
    name, numbers = operator.name.strip("_"), operator.args[1:]
    if name == "pow":
        return 0.0, math.inf
    if name == "hardtanh":
        low, high = numbers[:2] if len(numbers) > 1 else (-1.0, 1.0)
        return float(low), float(high)
    if name == "elu":
        alpha, scale = [*numbers[:2], 1.0, 1.0][:2] if len(numbers) != 1 else (numbers[0], 1.0)
        return -float(alpha) * float(scale), math.inf
    if name.startswith("clamp"):
        low, high = [*numbers, None, None][:2] if name != "clamp_max" else (None, numbers[0])
        return _number(low, -math.inf), _number(high, math.inf)
    return _RANGES[operator.name]


def _number(value: object, otherwise: float) -> float:
    return float(value) if isinstance(value, float | int) else otherwise


def _scaled(operator: Operator, low: float, high: float) -> _Range:
    """Return the range of the result of a scaling, from that of its argument."""
    name, at = operator.name.strip("_"), operator.needed.index(True)
    if name == "neg":
        low, high = -high, -low
    elif name == "reciprocal":
        low, high = (_inverse(high), _inverse(low)) if low >= 0 else (-math.inf, math.inf)
    if name in {"neg", "reciprocal"}:
        return low, high
    first, last = _constant(operator, at)
    if name == "div":
        if at or first <= 0 <= last:
            return -math.inf, math.inf
        first, last = 1 / last, 1 / first
    if name in {"mul", "div"}:
        products = [
            0.0 if one == 0 else one * each for one in (first, last) for each in (low, high)
        ]
        return min(products), max(products)
    if name == "add":
        return low + first, high + last
    # The constant minus the result, or the result minus the constant.
    if (name == "rsub") == (at == 0):
        return first - high, last - low
    return low - last, high - first


def _inverse(value: float) -> float:
    return 1 / value if value else math.inf


def _constant(operator: Operator, at: int) -> _Range:
    """Return the smallest and the largest value of the other argument of a scaling."""
    if len(operator.given) > 1:
        other = operator.given[1 - at].detach()
        if other.numel() and not other.is_complex():
            return float(other.min()), float(other.max())
    elif len(operator.args) > 1 and isinstance(operator.args[1], float | int):
        return float(operator.args[1]), float(operator.args[1])
    return -math.inf, math.inf
