"""Selects the models, optimizers and parameters of an engine that an argument names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar, cast

from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from halfstep.engine.window.window import Window

_Item = TypeVar("_Item")


def listed(given: _Item | Iterable[_Item], kind: type[_Item], what: str) -> list[_Item]:
    """Return one item or several as a list.

    Raises:
        TypeError: If an item has another type; the message says what to write.
    """
    return _items(given, kind, what, "write Engine(model, optimizer, ...), the model first")


def _items(
    given: _Item | Iterable[_Item], kind: type[_Item], what: str, instead: str
) -> list[_Item]:
    several = isinstance(given, Iterable) and not isinstance(given, kind)
    items = list(cast("Iterable[_Item]", given)) if several else [cast("_Item", given)]
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(
                f"{what} is of type {type(item).__name__}; allowed: a torch {kind.__name__} or a "
                f"list of them; {instead}"
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


def selected(
    windows: Sequence[Window], optimizers: Optimizer | Iterable[Optimizer]
) -> list[Window]:
    """Return the windows of one optimizer or several.

    Raises:
        TypeError: If something else is given.
        ValueError: If an optimizer does not belong to the engine, or is given twice.
    """
    given = _items(optimizers, Optimizer, "optimizers", "write optimizers=engine.optimizers[0]")
    chosen = [window for window in windows if any(window.optimizer is each for each in given)]
    if len(chosen) != len(given):
        raise ValueError(
            "optimizers=... names an optimizer that this engine does not own, or one twice; "
            "allowed: the entries of engine.optimizers"
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
