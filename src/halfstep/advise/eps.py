"""Checks whether an optimizer's eps is zero in the format of its updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.formats import FORMATS

if TYPE_CHECKING:
    import torch


def zero_eps(optimizer: torch.optim.Optimizer, form: str) -> str:
    """Return a message if an optimizer's eps is zero in a format, else "".

    The square of a small gradient is also zero in such a format, so the update becomes 0 / 0.
    Gradients shrink during training, so this often happens only after the recorded steps.

    Args:
        optimizer: The optimizer.
        form: The format in which it computes its updates.
    """
    for group in optimizer.param_groups:
        eps = group.get("eps", 0.0)
        if not isinstance(eps, float):  # Adafactor has a pair of another meaning
            continue
        if 0 < eps <= FORMATS[form].smallest_subnormal / 2:
            return (
                f"the optimizer's eps of {eps:g} is zero in {form}, so updates become inf or NaN "
                "where gradients are small; keep master weights, as o2 does"
            )
    return ""
