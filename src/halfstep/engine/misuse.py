"""Warnings about wrong use of an engine in a loop."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from halfstep.formats import format_name
from halfstep.optim.eps import LARGE_ENOUGH

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from halfstep.optim.eps import ZeroEps
    from halfstep.recipe import Recipe


class EngineWarning(UserWarning):
    """The code is valid, but probably does not do what the user wants."""


def warn_no_graph(device: torch.device) -> None:
    """Warn about captured steps on a device that has no graphs."""
    warnings.warn(
        f"steps are captured on a CUDA GPU; on {device.type} they run eagerly, with the same "
        "result",
        EngineWarning,
        stacklevel=3,
    )


def warn_backward_in_autocast() -> None:
    """Warn about a backward inside autocast: it casts operators again and keeps cached casts."""
    warnings.warn(
        "engine.backward() was called inside autocast; end the `with engine.autocast():` block "
        "after the loss, so that gradients keep the formats of the forward pass",
        EngineWarning,
        stacklevel=4,
    )


def warn_outside_autocast(products: torch.dtype | None, recipe: Recipe) -> None:
    """Warn about a loss whose products have a format other than that of the recipe's autocast.

    Args:
        products: The format of the products; None if they may be in that of autocast.
        recipe: The recipe, with a format of autocast.
    """
    if products is not None:
        warnings.warn(
            f"recipe {recipe.name!r} computes in {recipe.forward_format} inside "
            f"engine.autocast(), but this loss was computed outside of it, in "
            f"{format_name(products)}; write "
            "`with engine.autocast(): loss = criterion(engine.model(inputs), targets)`",
            EngineWarning,
            stacklevel=4,
        )


def warn_lost() -> None:
    """Warn about gradients that other code dropped in the middle of a window."""
    warnings.warn(
        "gradients of this accumulation window are gone: something called zero_grad() between two "
        "engine.backward(); delete the line, engine.step() zeroes them when the window closes",
        EngineWarning,
        stacklevel=4,
    )


def warn_touched() -> None:
    """Warn about gradients that other code changed while they were multiplied by the loss scale."""
    warnings.warn(
        "gradients changed between engine.backward() and engine.step(), while they are multiplied "
        "by the loss scale; let the engine clip: Engine(..., clip_norm=1.0), and reach gradients "
        "only through engine.backward()",
        EngineWarning,
        stacklevel=4,
    )


def warn_zero_eps(optimizer: str, lost: ZeroEps, recipe: Recipe) -> None:
    """Warn of an optimizer whose eps is zero in the format of its parameters."""
    warnings.warn(
        f"{lost}, the format of parameters of {optimizer} under recipe {recipe.name!r}: where a "
        "gradient is 0 or its square underflows, the update is 0/0 or x/0, and weights become inf "
        f"or NaN; write {optimizer}(..., eps={LARGE_ENOUGH}), or recipe='o2', whose optimizer "
        "updates fp32 master weights",
        EngineWarning,
        stacklevel=4,
    )


def warn_new_recipe(saved: str, here: str, changed: Sequence[str], *, lost_window: bool) -> None:
    """Warn that gradients and loss scales that were saved under another recipe are not loaded.

    Args:
        saved: Name of the recipe in the saved state.
        here: Name of the engine's recipe.
        changed: Names of the fields in which the two recipes differ.
        lost_window: Whether the gradients of a partly filled window are lost.
    """
    other = "the same recipe with other settings" if saved == here else repr(here)
    warnings.warn(
        f"the state was saved under recipe {saved!r} and is loaded under {other} "
        f"({', '.join(changed)}): the loss scale restarts from its initial value"
        + (", and a partly filled window is dropped" if lost_window else ""),
        EngineWarning,
        stacklevel=3,
    )
