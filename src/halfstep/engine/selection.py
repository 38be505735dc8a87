"""Selects the models, optimizers and parameters of an engine that an argument names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from halfstep.engine.window import Window

_Item = TypeVar("_Item")


def listed(given: _Item | Iterable[_Item], kind: type[_Item], what: str) -> list[_Item]:
    """Return one item or several as a list.

    Raises:
        TypeError: If an item has another type; the message says what to write.
    """
    several = isinstance(given, Iterable) and not isinstance(given, kind)
    items = list(cast("Iterable[_Item]", given)) if several else [cast("_Item", given)]
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(
                f"{what} is of type {type(item).__name__}; allowed: a torch {kind.__name__} or a "
                "list of them; write Engine(model, optimizer, ...), the model first"
            )
    return items


def only(given: Sequence[_Item], what: str) -> _Item:
    """Return the only item.

    Raises:
        ValueError: If there are several items; the message says what to write.
    """
    if len(given) != 1:
        raise ValueError(f"this engine has {len(given)} {what}s; write engine.{what}s[i]")
    return given[0]


def selected(windows: list[Window], optimizers: Sequence[Optimizer] | None) -> list[Window]:
    """Return the windows of `optimizers`; all windows if it is None.

    Raises:
        ValueError: If an optimizer does not belong to the engine.
    """
    if optimizers is None:
        return windows
    chosen = [window for window in windows if any(window.optimizer is each for each in optimizers)]
    if len(chosen) != len(optimizers):
        raise ValueError(
            "optimizers=[...] names an optimizer that this engine does not own; allowed: the "
            "entries of engine.optimizers"
        )
    return chosen


def trained(windows: Sequence[Window]) -> list[torch.Tensor]:
    """Return the parameters of `windows` that require gradients."""
    return [param for window in windows for param in window.params if param.requires_grad]


def parameter_names(models: Sequence[nn.Module]) -> dict[torch.Tensor, str]:
    """Return the names of all parameters, for error messages."""
    return {
        param: f"models[{index}].{name}" if len(models) > 1 else name
        for index, model in enumerate(models)
        for name, param in model.named_parameters()
    }
