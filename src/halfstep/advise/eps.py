"""An optimizer's eps that is zero in the format that the optimizer steps in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from halfstep.recipe import Recipe


def zero_eps(optimizer: torch.optim.Optimizer, formats: Iterable[str]) -> str:
    """Say that an optimizer's eps is zero in a format of its parameters; "" where it is not.

    The square of a small gradient is zero there as well, and the update then 0 / 0. Gradients
    shrink in training, so that this comes later than the recorded steps as often as not.

    Args:
        optimizer: The optimizer.
        formats: Those of its parameters.
    """
    known = [each for each in formats if each in FORMATS]
    for group in optimizer.param_groups:
        eps = group.get("eps", 0.0)
        if not isinstance(eps, float):  # Adafactor has two, for other uses
            continue
        for each in known:
            if 0 < eps <= FORMATS[each].smallest_subnormal / 2:
                return (
                    f"the optimizer's eps of {eps:g} is zero in {each}, so updates become inf or "
                    "NaN where gradients are small; keep master weights, as o2 does"
                )
    return ""


def zero_eps_under(recipe: Recipe, optimizer: torch.optim.Optimizer) -> str:
    """Say that an optimizer's eps is zero under a recipe; "" where it is not.

    Args:
        recipe: The recipe.
        optimizer: The optimizer, of parameters in fp32.
    """
    if recipe.keeps_small_updates or recipe.master_weights or recipe.params is None:
        return ""  # The optimizer steps in fp32.
    return zero_eps(optimizer, [recipe.params])
