"""Says why an optimizer is unsafe under a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.optim.eps import zero_eps_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from halfstep.recipe import Recipe


def why_unsafe(optimizer: Optimizer, recipe: Recipe) -> str:
    """Return a message if an optimizer's eps is zero in the format of its updates, else "".

    The square of a small gradient is also zero in such a format, so the update becomes 0 / 0.
    Gradients shrink during training, so this often happens only after the recorded steps.
    """
    found = zero_eps_of(optimizer, recipe.optimizer_format)
    if found is None:
        return ""
    return (
        f"the optimizer's eps of {found.eps:g} is zero in {found.form}, so updates become inf or "
        "NaN where gradients are small; keep master weights, as o2 does"
    )
