"""Selections, such as the minimum of distances, that only find what a mask has written.

A mask that multiplies distances by 0 makes the excluded ones the smallest. Then the minimum of each
row is 0, and it has no gradient. What a mask writes may be a limit on purpose, such as a margin. So
it counts only if no value could be beyond it: below 0 for distances, or beyond a huge number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.influence import MaskedSelection
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import place
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_HUGE = 1e4
_ROWS = 2
_LOWEST, _HIGHEST = frozenset({"amin", "min"}), frozenset({"amax", "max"})
_ELEMENTWISE = frozenset(
    {
        *("_to_copy", "abs", "add", "add_", "alias", "clamp", "clamp_max", "clamp_min", "clone"),
        *("div", "div_", "exp", "log", "mul", "mul_", "neg", "pow", "relu", "rsub", "sqrt"),
        *("square", "sub", "sub_"),
    }
)
_POSITIVE = frozenset(
    {
        *("_cdist_forward", "_euclidean_dist", "_pdist_forward", "_softmax", "abs", "exp"),
        *("linalg_vector_norm", "norm", "relu", "sigmoid", "softplus", "sqrt", "square"),
    }
)
_NEGATIVE = frozenset({"_log_softmax", "log_sigmoid_forward"})
_SAME_SIGN = frozenset(
    {
        *("_to_copy", "_unsafe_view", "alias", "clone", "detach", "expand", "index", "mean"),
        *("permute", "select", "slice", "squeeze", "sum", "t", "transpose", "unsqueeze", "view"),
    }
)
_PRODUCTS = frozenset({"_unsafe_view", "bmm", "mm", "view"})
_COSINE = 1e-3


@dataclass(slots=True, eq=False)
class _Mask:
    """A mask in the way of a selection.

    Attributes:
        operator: What applies it.
        at: Which of the operator's tensors is masked.
        written: Where it writes, in the shape of its result.
    """

    operator: Operator
    at: int
    written: torch.Tensor


def masked_selections(forwards: Forwards) -> Iterator[MaskedSelection]:
    """Yield the selections that only find what a mask has written.

    Args:
        forwards: The forward of the step.
    """
    operators = forwards.base
    for each in operators:
        if each.name not in _LOWEST | _HIGHEST | {"topk"} or each.makers[:1] == [OUTSIDE]:
            continue
        if not (each.needed and each.needed[0] and _is_used(operators, each)):
            continue
        mask = _mask(operators, each.makers[0], each.given[0].shape)
        if mask is None:
            continue
        values = operators[each.makers[0]].values[0]
        written = mask.written.expand(values.shape)
        rows = _rows(each, values, written)
        if rows >= _ROWS and _is_beyond(operators, mask):
            at = values[written]
            yield MaskedSelection(
                each.name,
                float(at.double().mean()),
                rows,
                each.name in _LOWEST or (each.name == "topk" and not _is_largest(each)),
                place(mask.operator),
                place(each),
            )


def _is_used(operators: Sequence[Operator], operator: Operator) -> bool:
    """Return whether the result goes into another one with gradients."""
    return any(
        needed and maker == operator.number
        for each in operators[operator.number + 1 :]
        for maker, needed in zip(each.makers, each.needed, strict=True)
    )


def _is_largest(topk: Operator) -> bool:
    return len(topk.args) < 4 or bool(topk.args[3])


def _mask(operators: Sequence[Operator], number: int, shape: torch.Size) -> _Mask | None:
    """Return the last mask that was applied to values, through elementwise operators."""
    while number != OUTSIDE:
        operator = operators[number]
        if not operator.values or operator.values[0].shape != shape:
            return None
        found = _applied(operator)
        if found is not None:
            return found
        if operator.name == "detach":  # Autograd itself keeps a result in this way.
            number = operator.makers[0]
            continue
        if operator.name not in _ELEMENTWISE or sum(operator.needed) != 1:
            return None
        at = operator.needed.index(True)
        if any(each.numel() > 1 for other, each in enumerate(operator.given) if other != at):
            return None
        number = operator.makers[at]
    return None


def _applied(operator: Operator) -> _Mask | None:
    """Return the mask that an operator applies to one of its tensors with gradients."""
    given, shape = operator.given, operator.values[0].shape
    if sum(operator.needed) != 1:
        return None
    at = operator.needed.index(True)
    written = None
    if operator.name in {"mul", "mul_"} and len(given) == 2:
        factor = given[1 - at].detach()
        if factor.numel() > 1 and bool(((factor == 0) | (factor == 1)).all()):
            written = factor == 0
    elif operator.name in {"masked_fill", "masked_fill_"}:
        written = given[1]
    elif operator.name == "where" and len(given) == 3 and at:
        constant = given[3 - at].detach()
        if constant.numel() and bool((constant == constant.flatten()[0]).all()):
            written = given[0] if at == 2 else ~given[0]
    if written is None or written.dtype != torch.bool:
        return None
    return _Mask(operator, at, written.expand(shape))


def _rows(operator: Operator, values: torch.Tensor, written: torch.Tensor) -> int:
    """Return in how many rows only written values are found; 0 if others are found in one."""
    args = operator.args
    if operator.name == "topk":
        dim = args[2] if len(args) > 2 else -1
        found = operator.values[0].amax(dim, keepdim=True)
        rows = written.gather(dim, operator.values[1]).all(dim)
        if not bool(rows[(~written).any(dim)].all()):
            return 0
    else:
        dim = args[1] if len(args) > 1 else None
        if dim is None or dim == []:
            return 0
        keeps = len(args) > 2 and bool(args[2])
        found = operator.values[0]
        for each in sorted(each % values.ndim for each in ([dim] if isinstance(dim, int) else dim)):
            found = found if keeps else found.unsqueeze(each)
    others = ((values == found) & ~written).flatten()
    if bool(others.any()):
        return 0
    dims = [dim] if isinstance(dim, int) else [*dim]
    rows = (~written).double().sum(dims) > 0
    return int(rows.sum()) if bool((written.double().sum(dims)[rows] > 0).all()) else 0


def _is_beyond(operators: Sequence[Operator], mask: _Mask) -> bool:
    """Return whether a mask writes what no other value can be beyond."""
    written = mask.operator.values[0][mask.written]
    low, high = float(written.min()), float(written.max())
    if min(abs(low), abs(high)) >= _HUGE:
        return True
    sign = _sign(operators, mask.operator.makers[mask.at])
    return (sign > 0 and high <= 0) or (sign < 0 and low >= 0)


def _sign(operators: Sequence[Operator], number: int) -> int:
    """Return 1 for results that cannot be below 0, -1 for such that cannot be above; 0 if unknown.

    Distances of a cosine are 1 minus a product.
    """
    sign = 1
    while number != OUTSIDE:
        operator = operators[number]
        name, args = operator.name.rstrip("_"), operator.args
        if name in _POSITIVE or (name == "pow" and args[1] in {2, 4}):
            return sign
        if name in _NEGATIVE:
            return -sign
        if name in {"clamp", "clamp_min"} and len(args) > 1 and isinstance(args[1], int | float):
            return sign if args[1] >= 0 else 0
        if name == "rsub" and _is_cosine(operators, operator):
            return sign
        if name == "neg":
            sign = -sign
        elif name in {"mul", "div"} and len(args) > 1 and isinstance(args[1], int | float):
            sign = sign if args[1] > 0 else -sign
        elif name not in _SAME_SIGN:
            return 0
        number = operator.makers[0] if operator.makers else OUTSIDE
    return 0


def _is_cosine(operators: Sequence[Operator], operator: Operator) -> bool:
    """Return whether a difference is 1 minus a product of unit vectors."""
    maker, values = operator.makers[0], operator.values[0]
    while maker != OUTSIDE and operators[maker].name == "detach":
        maker = operators[maker].makers[0]
    return (
        operator.args[1] == 1
        and maker != OUTSIDE
        and operators[maker].name in _PRODUCTS
        and float(values.min()) >= -_COSINE
        and float(values.max()) <= 2 + _COSINE
    )
