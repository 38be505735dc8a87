"""Terms of a loss that depend on parameters, and give them no gradient.

A loss is taken apart into the terms of its sum. A term that requires no gradient although it is
computed from trainable parameters only moves the value of the loss. So does a term that is rounded:
its gradient is 0.
"""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import LostTerm
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import place
from halfstep.doctor.replay.memory import storage_key

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    import torch

    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_SUMS = frozenset({"add", "sub", "rsub", "add_", "sub_"})
_LISTS = frozenset({"stack", "cat"})
_LINEAR = frozenset(
    {"_to_copy", "alias", "clone", "detach", "mean", "neg", "squeeze", "sum", "unsqueeze", "view"}
)
_SCALINGS = frozenset({"mul", "div", "mul_", "div_"})
_SHAPES_ONLY = re.compile(r".*_like$|new_.*")
_ITEM = re.compile(r"\.item\(\)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_FLAT = re.compile(r"(Ceil|Floor|Round|Sgn|Sign|Trunc)Backward\d")
"""The nodes of functions whose gradient is 0; those of a program's own functions differ."""
_STEPS = frozenset({"ceil", "floor", "round", "sgn", "sign", "trunc"})
_LINES = 40
"""The lines above a sum in which its numbers are looked up."""


def lost_terms(forwards: Forwards) -> Iterator[LostTerm]:
    """Yield the terms of the losses without gradients."""
    operators = forwards.base
    depends = _dependent(operators, forwards.trainable.keys())
    trains = _training(operators, forwards.trainable.keys())
    taken, lost, numbers = _terms(operators, forwards.losses, depends, trains)
    for operator, at in lost:
        maker = operator.makers[at]
        behind = _behind(operators, maker, depends)
        # value + (another value - value).detach() replaces the value of a loss, not its gradient.
        value = float(operator.given[at].detach().sum())
        if value and not taken & behind:
            how, cut = _cut(operators, behind, trains)
            yield LostTerm(how, value, place(cut))
    for operator, number in numbers:
        if _is_item(operator.caller.user_line):
            yield LostTerm("number", number, place(operator))


def _dependent(operators: Sequence[Operator], keys: Container[int]) -> list[bool]:
    """Return which operators compute with values of parameters, given by keys of storages."""
    depends: list[bool] = []
    for each in operators:
        depends.append(
            not _SHAPES_ONLY.match(each.name)
            and any(
                depends[maker] if maker != OUTSIDE else storage_key(tensor) in keys
                for tensor, maker in zip(each.given, each.makers, strict=True)
            )
        )
    return depends


def _training(operators: Sequence[Operator], keys: Container[int]) -> list[list[bool]]:
    """Return which arguments of operators pass gradients on to parameters, given by keys.

    Others may require gradients as well, but only for an input, such as the points at which a
    derivative is taken.
    """
    trains: list[list[bool]] = []
    for each in operators:
        trains.append(
            [
                needed
                and not _is_flat(tensor)
                and (
                    storage_key(tensor) in keys
                    if tensor.is_leaf
                    else maker == OUTSIDE or not any(operators[maker].needed) or any(trains[maker])
                )
                for tensor, maker, needed in zip(each.given, each.makers, each.needed, strict=True)
            ]
        )
    return trains


def _is_flat(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is not None and bool(_FLAT.fullmatch(tensor.grad_fn.name()))


def _terms(
    operators: Sequence[Operator],
    losses: Sequence[int],
    depends: Sequence[bool],
    trains: Sequence[Sequence[bool]],
) -> tuple[set[int], list[tuple[Operator, int]], list[tuple[Operator, float]]]:
    """Take sums apart.

    Returns:
        The numbers of the operators that make terms with gradients; the terms without gradients, as
        arguments of operators; and the Python numbers that are added.
    """
    taken: set[int] = set()
    lost: list[tuple[Operator, int]] = []
    numbers: list[tuple[Operator, float]] = []
    waiting = [each for each in dict.fromkeys(losses) if each != OUTSIDE]
    seen = set(waiting)
    while waiting:
        operator = operators[waiting.pop()]
        is_sum = operator.name in _SUMS | _LISTS
        if not (is_sum or operator.name in _LINEAR or _is_scaling(operator)):
            taken.add(operator.number)
            continue
        for at, (tensor, maker) in enumerate(zip(operator.given, operator.makers, strict=True)):
            if trains[operator.number][at]:
                if maker != OUTSIDE and maker not in seen:
                    seen.add(maker)
                    waiting.append(maker)
            elif (
                is_sum and any(trains[operator.number]) and tensor.numel() == 1 and maker != OUTSIDE
            ):
                lost += [(operator, at)] if depends[maker] else []
        if operator.name in _SUMS:
            others = [each for each in operator.args[1:2] if isinstance(each, float | int)]
            numbers += [(operator, float(each)) for each in others if each]
    return taken, lost, numbers


def _is_scaling(operator: Operator) -> bool:
    return (
        operator.name in _SCALINGS
        and sum(operator.needed) == 1
        and (len(operator.given) == 1 or any(each.numel() == 1 for each in operator.given))
    )


def _behind(operators: Sequence[Operator], end: int, depends: Sequence[bool]) -> set[int]:
    """Return the operators that compute a result from parameters."""
    found, waiting = {end}, [end]
    while waiting:
        makers = {each for each in operators[waiting.pop()].makers if each != OUTSIDE}
        makers = {each for each in makers - found if depends[each]}
        found |= makers
        waiting += makers
    return found


def _cut(
    operators: Sequence[Operator], behind: set[int], trains: Sequence[Sequence[bool]]
) -> tuple[str, Operator]:
    """Return how a result loses its gradients, and the last operator that has some."""
    for number in sorted(behind, reverse=True):
        operator = operators[number]
        if not any(trains[number]):
            continue
        if operator.caller.node:
            return "create_graph", operator
        if operator.name == "detach":
            return "detach", operator
        if operator.name.strip("_") in _STEPS:
            return operator.name.strip("_"), operator
        if operator.made and not operator.made[0].is_floating_point():
            return operator.name, operator
        return "no_grad", operator
    return "detach", operators[min(behind)]  # the parameter's `.data`


def _is_item(mark: Mark | None) -> bool:
    """Return whether a line adds a number that `item()` has made, there or a few lines above."""
    if mark is None:
        return False
    file, number, _ = mark
    line = linecache.getline(file, number)
    if _ITEM.search(line):
        return True
    names = {*_NAME.findall(line.partition("=")[2])}
    for above in range(number - 1, max(0, number - _LINES), -1):
        target, equals, value = linecache.getline(file, above).partition("=")
        if equals and target.strip(" +") in names and _ITEM.search(value):
            return True
    return False
