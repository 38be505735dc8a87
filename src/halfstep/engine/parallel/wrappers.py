"""Models and optimizers that the caller has wrapped before passing them to the engine.

DDP, DataParallel, FSDP2 and ZeRO keep references to the parameters that they were given. So a
technique that changes or replaces parameters would come too late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.parallel import DataParallel, DistributedDataParallel

from halfstep.optim.zero import is_zero

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.recipe import Recipe


def is_fully_sharded(model: nn.Module) -> bool:
    """Tell whether `fully_shard` was called on a model, without importing FSDP2."""
    return type(model).__name__.startswith("FSDP")


_WRAPPERS: dict[str, Callable[[nn.Module], bool]] = {
    "DistributedDataParallel": lambda m: isinstance(m, DistributedDataParallel),
    "DataParallel": lambda m: isinstance(m, DataParallel),
    "fully_shard": is_fully_sharded,
    "torch.compile": lambda m: hasattr(m, "_orig_mod"),
}


_INSTEAD = {
    "DistributedDataParallel": "Engine(model, ..., parallel='ddp') with the bare model",
    "DataParallel": "Engine(model, ..., parallel='dp') with the bare model",
    "fully_shard": "halfstep.shard(model, recipe) instead of fully_shard(model)",
    "torch.compile": "engine = Engine(model, ...) first, then torch.compile(engine.model)",
}


def wrapper_of(model: nn.Module) -> str | None:
    """Return the name of the wrapper of a model, or None for a bare model."""
    return next((name for name, is_it in _WRAPPERS.items() if is_it(model)), None)


def refuse_wrapped(models: Iterable[nn.Module], recipe_name: str) -> None:
    """Refuse models that are already wrapped; call this if the recipe changes parameters."""
    for model in models:
        wrapper = wrapper_of(model)
        if wrapper:
            raise ValueError(
                f"recipe {recipe_name!r} changes the model's parameters, but the model is already "
                f"wrapped in {wrapper}; write {_INSTEAD[wrapper]}"
            )


def refuse_zero(optimizers: Iterable[Optimizer], recipe: Recipe, *, reshapes: bool) -> None:
    """Refuse a `ZeroRedundancyOptimizer` that does not work with the recipe.

    Args:
        optimizers: All optimizers of an engine.
        recipe: The recipe of the engine.
        reshapes: Whether a technique changes parameters, and with them the memory that they use.
    """
    reason = recipe.refusal("zero_optimizer")
    for optimizer in filter(is_zero, optimizers):
        if reason:
            sharded = "" if recipe.refusal("fully_shard") else _SHARD.format(recipe.name)
            raise TypeError(
                "ZeroRedundancyOptimizer has partitioned the model's own parameters, and under "
                f"recipe {recipe.name!r} {reason}; write {sharded}recipe='fp16' or 'bf16'"
            )
        if reshapes and getattr(optimizer, "parameters_as_bucket_view", False):
            raise TypeError(
                f"recipe {recipe.name!r} changes the model's parameters, which "
                "ZeroRedundancyOptimizer(parameters_as_bucket_view=True) has put into buckets; "
                "leave parameters_as_bucket_view out"
            )


_SHARD = "model = halfstep.shard(model, {!r}), whose optimizer state is shared too, or "
