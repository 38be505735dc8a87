"""The ways from one operator of a forward to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.memory import storage_key

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from halfstep.doctor.replay.influence.forward import Operator

_RANDOM = ("rand", "normal")


def ancestors(operators: Sequence[Operator], end: int) -> set[int]:
    """Return the operators that a result depends on, and its own."""
    waiting, seen = [end], {end}
    while waiting:
        makers = {each for each in operators[waiting.pop()].makers if each != OUTSIDE} - seen
        seen |= makers
        waiting += makers
    return seen


def draws(operator: Operator) -> bool:
    """Return whether an operator draws numbers; its arguments only give their shape."""
    return any(each in operator.name for each in _RANDOM)


def is_only_way(
    operators: Sequence[Operator], end: int, through: int, inputs: Container[int]
) -> bool:
    """Return whether a result depends on an operator, and on the inputs only through it."""
    waiting, seen, is_reached = [end], {end}, False
    while waiting:
        number = waiting.pop()
        if number == through:
            is_reached = True
            continue
        operator = operators[number]
        if draws(operator):
            continue
        for tensor, maker in zip(operator.given, operator.makers, strict=True):
            if storage_key(tensor) in inputs:
                return False
            if maker != OUTSIDE and maker not in seen:
                seen.add(maker)
                waiting.append(maker)
    return is_reached
