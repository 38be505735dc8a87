"""Refuses models, optimizers and recipes that do not work together in one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.parameter import is_lazy

from halfstep.mechanisms.master_weights.technique import is_master

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.recipe import Recipe
    from halfstep.recipe.resolution import Resolution


def refuse_misfits(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Refuse models and optimizers that do not belong together.

    Raises:
        ValueError: If the models have no parameters, two optimizers own the same parameter, or an
            optimizer holds no parameter of the models.
    """
    if not any(True for model in models for _ in model.parameters()):
        raise ValueError("the model has no parameters; give the engine one that can be trained")
    refuse_shared(optimizers)
    refuse_strangers(models, optimizers)


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
    """Refuse an optimizer without parameters of these models: it would silently train nothing.

    Master weights of an earlier engine are refused too. An optimizer may hold other parameters in
    addition to those of the models, such as the parameters of a loss function.
    """
    known = {param for model in models for param in model.parameters()}
    for index, optimizer in enumerate(optimizers):
        held = {param for group in optimizer.param_groups for param in group["params"]}
        strange = None
        if any(is_master(param) for param in held - known):
            strange = "master weights of an engine before"
        elif known.isdisjoint(held):
            strange = "no parameter of the models (those of another model?)"
        if strange:
            raise ValueError(
                f"optimizer {index} holds {strange}; write {type(optimizer).__name__}"
                "(model.parameters(), ...) just before the engine"
            )


def refuse_unfit(models: Sequence[nn.Module], recipe: Recipe, *, averaged: bool) -> None:
    """Refuse models that do not work with a recipe, or with an average of the weights.

    Raises:
        TypeError: If a parameter is complex and the recipe scales the loss, or if the recipe needs
            hooks on a module that TorchScript has compiled.
        ValueError: If a lazy parameter, which has no values yet, would have to be copied.
    """
    named = [item for model in models for item in model.named_parameters()]
    for name, param in named:
        if param.is_complex() and param.requires_grad and recipe.scaling:
            raise TypeError(
                f"parameter {name!r} is complex, and recipe {recipe.name!r} scales the loss, which "
                "torch can undo for real gradients only; write recipe='bf16' or 'fp32'"
            )
        if is_lazy(param) and (recipe.refusal("lazy_parameters") or averaged):
            raise ValueError(
                f"parameter {name!r} has no shape and no values yet, as its layer is lazy; run "
                "model(batch) once, then build the optimizer and the engine"
            )
    if recipe.refusal("script_modules"):
        modules = [item for model in models for item in model.named_modules()]
        for name, module in modules:
            if isinstance(module, torch.jit.ScriptModule):
                raise TypeError(
                    f"module {name or 'model'!r} is compiled by TorchScript, and recipe "
                    f"{recipe.name!r} needs hooks on it, which it cannot have; give the engine the "
                    "module that it was made from, or write recipe='fp16' or 'bf16'"
                )


def refuse_unresolved(resolution: Resolution) -> None:
    """Refuse a recipe that the device can neither run natively nor rehearse."""
    if resolution.how == "refused":
        reasons = "; ".join(resolution.those("refused"))
        raise ValueError(f"recipe {resolution.recipe!r} on {resolution.device}: {reasons}")
