"""What a loop may get wrong around an engine, and the line to write instead."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from halfstep.engine.traces import other_format_of_products
from halfstep.formats import format_name, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from halfstep.recipe import Recipe


class EngineWarning(UserWarning):
    """Legal code that is probably not what was meant."""


def warn_backward_in_autocast() -> None:
    """Warn of a backward inside autocast: its ops are chosen again, and memory is kept for it."""
    warnings.warn(
        "engine.backward() was called inside autocast; end the `with engine.autocast():` block "
        "after the loss, so that gradients keep the formats of the forward pass",
        EngineWarning,
        stacklevel=4,
    )


def warn_outside_autocast(loss: torch.Tensor, recipe: Recipe) -> None:
    """Warn of a loss whose model multiplied in another format than autocast would have."""
    assert recipe.forward_format is not None
    found = other_format_of_products(loss, torch_dtype(recipe.forward_format))
    if found is not None:
        warnings.warn(
            f"recipe {recipe.name!r} computes in {recipe.forward_format} inside "
            f"engine.autocast(), but this loss was computed outside of it, in "
            f"{format_name(found)}; write "
            "`with engine.autocast(): loss = criterion(engine.model(inputs), targets)`",
            EngineWarning,
            stacklevel=4,
        )


def warn_lost() -> None:
    """Warn of gradients that somebody dropped in the middle of a window."""
    warnings.warn(
        "gradients of this accumulation window are gone: something called zero_grad() between two "
        "engine.backward(); delete the line, engine.step() zeroes them when the window closes",
        EngineWarning,
        stacklevel=4,
    )


def warn_touched() -> None:
    """Warn of gradients that were changed while they were multiplied by the loss scale."""
    warnings.warn(
        "gradients changed between engine.backward() and engine.step(), while they are multiplied "
        "by the loss scale; let the engine clip: Engine(..., clip_norm=1.0), and reach gradients "
        "only through engine.backward()",
        EngineWarning,
        stacklevel=4,
    )


def warn_new_recipe(saved: str, here: str, changed: Sequence[str], *, lost_window: bool) -> None:
    """Warn that gradients and loss scales made under another recipe are not taken over.

    Args:
        saved: Name of the recipe of the state.
        here: Name of the engine's.
        changed: Names of the settings in which they differ.
        lost_window: Whether gradients are lost with it.
    """
    other = "the same recipe with other settings" if saved == here else repr(here)
    warnings.warn(
        f"the state was saved under recipe {saved!r} and is loaded under {other} "
        f"({', '.join(changed)}): the loss scale restarts from its initial value"
        + (", and a partly filled window is dropped" if lost_window else ""),
        EngineWarning,
        stacklevel=3,
    )
