"""What a loop may get wrong around an engine, and the line to write instead."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from halfstep.engine.gradients import Clipping
    from halfstep.engine.slot import Slot
    from halfstep.recipe import Recipe


class EngineWarning(UserWarning):
    """Legal code that is probably not what was meant."""


def refuse_closed(*, closed: bool) -> None:
    """Refuse to train with an engine that has given everything back."""
    if closed:
        raise RuntimeError("this engine is closed; build a new Engine(model, optimizer, ...)")


def refuse_misfits(
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[LRScheduler],
    recipe: Recipe,
) -> None:
    """Refuse what does not belong together, or cannot work under a recipe.

    Raises:
        ValueError: If a parameter has two owners, or an optimizer or scheduler is of elsewhere.
        TypeError: If an optimizer evaluates the loss inside its step and the recipe cannot let it.
    """
    if not any(True for model in models for _ in model.parameters()):
        raise ValueError("the model has no parameters; give the engine one that can be trained")
    refuse_shared(optimizers)
    refuse_strangers(models, optimizers)
    for scheduler in schedulers:
        if all(scheduler.optimizer is not optimizer for optimizer in optimizers):
            raise ValueError(
                f"{type(scheduler).__name__} belongs to an optimizer that this engine does not "
                "own, and would never step; build it over one of the engine's optimizers"
            )
    for optimizer in optimizers:
        if needs_closure(optimizer) and (recipe.loss_scale or recipe.half_params):
            raise TypeError(
                f"{type(optimizer).__name__} evaluates the loss inside its step, which recipe "
                f"{recipe.name!r} cannot unscale or skip; write recipe='fp32' or 'bf16'"
            )


def refuse_wrapped(models: Iterable[nn.Module], recipe_name: str) -> None:
    """Refuse models that are wrapped already, for a recipe that changes their parameters."""
    for model in models:
        wrapper = next((name for name, is_it in _WRAPPERS.items() if is_it(model)), None)
        if wrapper:
            raise ValueError(
                f"recipe {recipe_name!r} changes the model's parameters, but the model is already "
                f"wrapped in {wrapper}; write engine = Engine(model, ...) first, then {wrapper}"
                "(engine.model)"
            )


_WRAPPERS: dict[str, Callable[[nn.Module], bool]] = {
    "DistributedDataParallel": lambda m: isinstance(m, DistributedDataParallel),
    "DataParallel": lambda m: isinstance(m, DataParallel),
    "fully_shard": lambda m: type(m).__name__.startswith("FSDP"),
    "torch.compile": lambda m: hasattr(m, "_orig_mod"),
}


def refuse_shared(optimizers: Sequence[Optimizer]) -> None:
    """Refuse a parameter that two optimizers own: both would unscale and update it."""
    owners: dict[torch.Tensor, int] = {}
    for index, optimizer in enumerate(optimizers):
        for param in (p for group in optimizer.param_groups for p in group["params"]):
            if owners.setdefault(param, index) != index:
                raise ValueError(
                    f"a parameter of shape {tuple(param.shape)} belongs to optimizers "
                    f"{owners[param]} and {index}; allowed: one owner for each parameter"
                )


def refuse_strangers(models: Iterable[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Refuse an optimizer that trains none of the models: it would never step, without a word."""
    known = {param for model in models for param in model.parameters()}
    for index, optimizer in enumerate(optimizers):
        if known.isdisjoint(p for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(
                f"optimizer {index} holds no parameter of the models (those of another model, or "
                f"master weights of an engine before); write {type(optimizer).__name__}"
                "(model.parameters(), ...) just before the engine"
            )


def refuse_unreduced(models: Iterable[nn.Module]) -> None:
    """Refuse to close a window whose gradients stayed within this process."""
    for model in models:
        if isinstance(model, DistributedDataParallel) and not model.require_backward_grad_sync:
            raise RuntimeError(
                "engine.step(close=True) came after a backward that DistributedDataParallel did "
                "not reduce, as its window was to go on; write `for batch in "
                "engine.batches(loader)`, which knows where the last window closes"
            )


def needs_closure(optimizer: Optimizer) -> bool:
    """Tell whether `optimizer.step` cannot be called without a closure (LBFGS)."""
    parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def refuse_closure(
    slots: Sequence[Slot], accumulate: int, clipping: Clipping, recipe: Recipe
) -> None:
    """Refuse a closure where the optimizer cannot be left alone with the loss."""
    plain = len(slots) == accumulate == 1 and not clipping
    if not plain or recipe.loss_scale or recipe.half_params:
        raise TypeError(
            f"engine.step(closure=...) works for one optimizer, accumulate=1, no clipping and a "
            f"recipe that neither scales the loss nor changes parameters; given: {len(slots)} "
            f"optimizers, accumulate={accumulate}, {clipping}, recipe={recipe.name!r}"
        )


def warn_backward_in_autocast(device: torch.device) -> None:
    """Warn of a backward inside autocast: its ops are chosen again, and memory is kept for it."""
    if torch.is_autocast_enabled(device.type):
        warnings.warn(
            "engine.backward() was called inside autocast; end the `with engine.autocast():` block "
            "after the loss, so that gradients keep the formats of the forward pass",
            EngineWarning,
            stacklevel=3,
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
        stacklevel=3,
    )


def warn_new_recipe(saved: str, here: str, *, lost_window: bool) -> None:
    """Warn that gradients and loss scales made under another recipe are not taken over."""
    warnings.warn(
        f"the state was saved under recipe {saved!r} and goes on under {here!r}: the loss scale "
        "starts anew" + (", and a half-filled window is dropped" if lost_window else ""),
        EngineWarning,
        stacklevel=3,
    )
