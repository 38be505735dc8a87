"""Optimizers that evaluate the loss inside their step (LBFGS): what the engine refuses for them.

The engine cannot measure, clip or skip the updates inside such a step.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.optim import Optimizer

    from halfstep.recipe import Recipe

CLOSURE = (
    "write engine.step(closure=closure), where closure() calls engine.zero_grad(), computes the "
    "loss inside `with engine.autocast():`, calls engine.backward(loss) and returns float(loss)"
)
"""Part of error messages: what to write for an optimizer that evaluates the loss in its step."""


def needs_closure(optimizer: Optimizer) -> bool:
    """Tell whether `optimizer.step` cannot be called without a closure (LBFGS)."""
    parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def refuse_recipe(optimizers: Iterable[Optimizer], recipe: Recipe) -> None:
    """Refuse a recipe that does not work with an optimizer that evaluates the loss in its step.

    Raises:
        TypeError: If there is such an optimizer; the message names recipes that work.
    """
    for optimizer in optimizers:
        reason = needs_closure(optimizer) and recipe.refusal("closure")
        if reason:
            raise TypeError(
                f"{type(optimizer).__name__} evaluates the loss inside its step, which recipe "
                f"{recipe.name!r} does not support: {reason}; write recipe='fp32' or 'bf16'"
            )


def refuse_missing_closure(optimizer: Optimizer) -> None:
    """Raise the error for a step without a closure of an optimizer that needs one."""
    raise TypeError(f"{type(optimizer).__name__} evaluates the loss inside its step; {CLOSURE}")


def refuse_closure(optimizers: int, accumulate: int, clipping: object, recipe: Recipe) -> None:
    """Refuse a closure if the engine would have to change gradients, which the closure prevents.

    Args:
        optimizers: Number of optimizers to step.
        accumulate: Number of micro-steps in a full window.
        clipping: The limit of clipping, false if there is none.
        recipe: The recipe of the engine.
    """
    plain = optimizers == accumulate == 1 and not clipping
    if not plain or recipe.refusal("closure"):
        raise TypeError(
            f"engine.step(closure=...) works for one optimizer, accumulate=1, no clipping and a "
            f"recipe that neither scales the loss nor changes parameters; given: {optimizers} "
            f"optimizers, accumulate={accumulate}, {clipping}, recipe={recipe.name!r}"
        )
