"""Policies whose entropy the loss makes smaller.

A policy gradient multiplies the logarithms of the probabilities of actions, or their ratios to old
ones, by advantages, which have both signs. An entropy of the same policy in the same loss is a
bonus: it keeps the policy from settling too early, so the loss must fall as the entropy grows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.answers import SmallerEntropy
from halfstep.doctor.replay.influence.losses import place
from halfstep.doctor.replay.influence.paths import ancestors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_NORMAL = 0.5 + 0.5 * math.log(2 * math.pi)
_FEWEST = 8  # actions
_NEAR = 1e-3


def smaller_entropies(forwards: Forwards) -> Iterator[SmallerEntropy]:
    """Yield the entropies of policies that a loss of the step makes smaller.

    Args:
        forwards: The forward of the step.
    """
    operators = forwards.base
    ends = [each.sum() for each in forwards.ends if each.requires_grad]
    found = [
        (each, sign) for each in operators if (sign := _sign(each)) and each.made[0].requires_grad
    ]
    if not found or not ends:
        return
    policies = [
        {
            id(each)
            for number in ancestors(operators, policy.number)
            for each in _own(operators[number])
        }
        for policy in operators
        if _is_of_policy(policy)
    ]
    for operator, sign in found:
        last = _last_layer(operators, operator.number)
        if not last or not any(last <= policy for policy in policies):
            continue
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(
                ends, operator.made[0], retain_graph=True, allow_unused=True
            )
        if gradient is not None and bool((gradient * sign > 0).all()):
            yield SmallerEntropy(float(gradient.abs().sum()), place(operator))
            return


def _sign(operator: Operator) -> int:
    """Return 1 for an operator that makes an entropy, -1 for a negative one, 0 for another one."""
    if not operator.made or not operator.given:
        return 0
    if operator.name == "add" and len(operator.given) == 1:
        number = operator.args[0] if isinstance(operator.args[0], float) else operator.args[1]
        return int(isinstance(number, float) and abs(number - _NORMAL) < _NEAR)
    if operator.name == "mul" and len(operator.given) == 2 and all(operator.needed):
        one, other = (each.detach() for each in operator.given)
        if one.shape != other.shape or not one.ndim or one.shape[-1] < 2:
            return 0
        for shares, logs in ((one, other), (other, one)):
            if bool((shares >= 0).all()) and torch.allclose(logs.exp(), shares, atol=_NEAR):
                sums = shares.sum(-1)
                return -int(torch.allclose(sums, torch.ones_like(sums), atol=_NEAR))
    return 0


def _is_of_policy(operator: Operator) -> bool:
    """Return whether an operator multiplies something of each action by its advantage."""
    if operator.name != "mul" or len(operator.given) != 2 or sum(operator.needed) != 1:
        return False
    weights = operator.given[operator.needed.index(False)].detach()
    return (
        weights.shape == operator.given[operator.needed.index(True)].shape
        and weights.numel() >= _FEWEST
        and weights.is_floating_point()
        and bool((weights > 0).any() & (weights < 0).any())
    )


def _own(operator: Operator) -> list[torch.Tensor]:
    """Return the parameters that an operator is given."""
    return [each for each in operator.given if each.requires_grad and each.is_leaf]


def _last_layer(operators: Sequence[Operator], end: int) -> set[int]:
    """Return the identities of the parameters of the last layer before an operator."""
    layers = (_own(operators[at]) for at in sorted(ancestors(operators, end), reverse=True))
    return {id(each) for each in next(filter(None, layers), [])}
