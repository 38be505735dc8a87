"""An optimizer's eps that is zero in the format that the optimizer steps in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.formats import FORMATS

if TYPE_CHECKING:
    import torch


def zero_eps(optimizer: torch.optim.Optimizer, form: str) -> str:
    """Say that an optimizer's eps is zero in a format; "" where it is not.

    The square of a small gradient is zero there as well, and the update then 0 / 0. Gradients
    shrink in training, so that this comes later than the recorded steps as often as not.

    Args:
        optimizer: The optimizer.
        form: The format in which it computes its updates.
    """
    for group in optimizer.param_groups:
        eps = group.get("eps", 0.0)
        if not isinstance(eps, float):  # Adafactor has two, for other uses
            continue
        if 0 < eps <= FORMATS[form].smallest_subnormal / 2:
            return (
                f"the optimizer's eps of {eps:g} is zero in {form}, so updates become inf or NaN "
                "where gradients are small; keep master weights, as o2 does"
            )
    return ""
