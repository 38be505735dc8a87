"""Targets of a value that the trained network itself computes, with gradients.

The target of temporal difference learning is a reward plus a discounted value of the next state. It
stands for a fixed number. If it passes gradients on, the step also moves the value of the next
state towards that of the present one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Bootstrap
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import place
from halfstep.doctor.replay.memory import storage_key

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_DIFFERENCES = frozenset({"sub", "rsub", "mse_loss", "smooth_l1_loss", "huber_loss"})
_SHAPES = frozenset(
    {
        *("view", "unsqueeze", "squeeze", "_to_copy", "clone", "expand", "alias"),
        *("where", "masked_fill", "index_put", "index", "clamp"),  # the last states of episodes
    }
)
_STACKS = frozenset({"stack", "cat"})
"""Returns that were computed state by state; the first of them stands for all."""
_LOWEST = 0.5
"""The lowest number that counts as a discount."""


def bootstraps(forwards: Forwards, trained: Container[int]) -> Iterator[Bootstrap]:
    """Yield the differences of a value and such a target.

    Args:
        forwards: Runs the forward.
        trained: Keys of the storages of the parameters that an optimizer updates.
    """
    operators = forwards.base
    inputs = {storage_key(each) for each in forwards.inputs.values()}
    for each in operators:
        if each.name not in _DIFFERENCES or len(each.given) < 2 or not all(each.needed[:2]):
            continue
        for value, target in ((0, 1), (1, 0)):
            found = _target(operators, each.makers[target], inputs)
            if found is None:
                continue
            mine, discount = found
            both = _parameters(operators, each.makers[value]) & _parameters(operators, mine.number)
            if any(key in trained for key in both):
                yield Bootstrap(discount, place(mine))
                return


def _target(
    operators: Sequence[Operator], number: int, inputs: Container[int]
) -> tuple[Operator, float] | None:
    """Return the sum of a reward and a discounted value, and the discount."""
    while number != OUTSIDE and operators[number].name in _SHAPES | _STACKS:
        number = _needed_maker(operators[number])
    if number == OUTSIDE or operators[number].name != "add":
        return None
    operator = operators[number]
    if len(operator.given) != 2 or sum(operator.needed) != 1:
        return None
    at = operator.needed.index(True)
    reward = operator.given[1 - at]
    # A state to which a network adds a change is an input of the network; a reward is not.
    if reward.numel() < 2 or storage_key(reward) in inputs:
        return None
    discount = _discount(operators, operator.makers[at])
    return None if discount is None else (operator, discount)


def _discount(operators: Sequence[Operator], number: int) -> float | None:
    """Return the discount by which a value is multiplied; None if it is not."""
    while number != OUTSIDE:
        operator = operators[number]
        if operator.name not in {"mul", *_SHAPES}:
            return None
        factors = [each for each in operator.args[1:2] if isinstance(each, float)]
        factors += [
            # Discounts are also multiplied by 0 at the last state of an episode.
            float(each.max())
            for each, needed in zip(operator.given, operator.needed, strict=True)
            if not needed and each.is_floating_point() and each.numel() and float(each.min()) >= 0
        ]
        found = next((each for each in factors if _LOWEST <= each < 1), None)
        if found is not None:
            return found
        number = _needed_maker(operator)
    return None


def _needed_maker(operator: Operator) -> int:
    """Return the number of the operator that made the first operand that requires gradients."""
    return operator.makers[operator.needed.index(True)] if any(operator.needed) else OUTSIDE


def _parameters(operators: Sequence[Operator], number: int) -> set[int]:
    """Return the storages from outside that a result depends on with gradients."""
    found: set[int] = set()
    waiting, seen = [number], {number}
    while waiting:
        operator = operators[waiting.pop()]
        for tensor, maker, needed in zip(
            operator.given, operator.makers, operator.needed, strict=True
        ):
            if needed and maker == OUTSIDE:
                found.add(storage_key(tensor))
            elif needed and maker not in seen:
                seen.add(maker)
                waiting.append(maker)
    return found
