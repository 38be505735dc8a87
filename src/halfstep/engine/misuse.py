"""What a loop may get wrong around an engine, and the line to write instead."""

from __future__ import annotations

import warnings
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from halfstep.engine.guard import CLOSURE, needs_closure
from halfstep.engine.parallel.ranks import is_zero
from halfstep.engine.traces import other_format_of_products
from halfstep.formats import format_name, torch_dtype
from halfstep.techniques.master import is_master

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from halfstep.engine.assemble import Parallel
    from halfstep.engine.gradients import Clipping
    from halfstep.engine.slot import Slot
    from halfstep.recipe import Recipe
    from halfstep.recipe.resolution import Resolution


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
        reason = needs_closure(optimizer) and recipe.refusal("closure")
        if reason:
            raise TypeError(
                f"{type(optimizer).__name__} evaluates the loss inside its step, which recipe "
                f"{recipe.name!r} cannot let it: {reason}; write recipe='fp32' or 'bf16'"
            )


def refuse_unfit(models: Sequence[nn.Module], recipe: Recipe, *, averaged: bool) -> None:
    """Refuse models that a recipe cannot be carried out on.

    Raises:
        TypeError: If parameters are complex where losses are scaled, or a module that is to be
            changed is compiled by TorchScript.
        ValueError: If parameters that are to be copied have no values yet.
    """
    named = [item for model in models for item in model.named_parameters()]
    for name, param in named:
        if param.is_complex() and param.requires_grad and recipe.loss_scale:
            raise TypeError(
                f"parameter {name!r} is complex, and recipe {recipe.name!r} scales the loss, which "
                "torch can undo for real gradients only; write recipe='bf16' or 'fp32'"
            )
        if is_lazy(param) and (recipe.master_weights or averaged):
            raise ValueError(
                f"parameter {name!r} has no shape and no values yet, as its layer is lazy; run "
                "model(batch) once, then build the optimizer and the engine"
            )
    if recipe.half_params:
        modules = [item for model in models for item in model.named_modules()]
        for name, module in modules:
            if isinstance(module, torch.jit.ScriptModule):
                raise TypeError(
                    f"module {name or 'model'!r} is compiled by TorchScript, and recipe "
                    f"{recipe.name!r} needs hooks on it, which it cannot have; give the engine the "
                    "module that it was made from, or write recipe='fp16' or 'bf16'"
                )


def refuse_unresolved(resolution: Resolution) -> None:
    """Refuse a recipe that the device can neither carry out nor rehearse."""
    if resolution.how == "refused":
        reasons = "; ".join(resolution.those("refused"))
        raise ValueError(f"recipe {resolution.recipe!r} on {resolution.device}: {reasons}")


def refuse_wrapped(models: Iterable[nn.Module], recipe_name: str) -> None:
    """Refuse models that are wrapped already, for a recipe that changes their parameters."""
    for model in models:
        wrapper = next((name for name, is_it in _WRAPPERS.items() if is_it(model)), None)
        if wrapper:
            raise ValueError(
                f"recipe {recipe_name!r} changes the model's parameters, but the model is already "
                f"wrapped in {wrapper}; write {_INSTEAD[wrapper]}"
            )


_WRAPPERS: dict[str, Callable[[nn.Module], bool]] = {
    "DistributedDataParallel": lambda m: isinstance(m, DistributedDataParallel),
    "DataParallel": lambda m: isinstance(m, DataParallel),
    "fully_shard": lambda m: type(m).__name__.startswith("FSDP"),
    "torch.compile": lambda m: hasattr(m, "_orig_mod"),
}


_INSTEAD = {
    "DistributedDataParallel": "Engine(model, ..., parallel='ddp') with the bare model",
    "DataParallel": "Engine(model, ..., parallel='dp') with the bare model",
    "fully_shard": "halfstep.shard(model, recipe) instead of fully_shard(model)",
    "torch.compile": "engine = Engine(model, ...) first, then torch.compile(engine.model)",
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
    """Refuse an optimizer that trains no model of these: it would never move one, without a word.

    Parameters of elsewhere, such as a loss function's own, may stand beside those of the models.
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


def refuse_parallel(parallel: Parallel, models: Sequence[nn.Module], recipe: Recipe) -> None:
    """Refuse to put models on several devices where that cannot work.

    Raises:
        ValueError: If there is no such way, a setting would have no effect, or models are there
            already.
        RuntimeError: If there is no process group, or there are no GPUs, that it needs.
    """
    how = parallel.how
    if how not in (None, "ddp", "dp"):
        raise ValueError(
            f"parallel is {how!r}; allowed: 'ddp', 'dp' or None; for FSDP2 write "
            "model = halfstep.shard(model, recipe) before the optimizer"
        )
    if parallel.dp and how != "dp":
        raise ValueError("dp is given without parallel='dp'; write it, or leave dp out")
    if (parallel.ddp or parallel.sync_batchnorm) and how != "ddp":
        given = "ddp" if parallel.ddp else "sync_batchnorm"
        raise ValueError(
            f"{given} is given without parallel='ddp'; write it, or leave {given} out "
            "(halfstep.shard has its own sync_batchnorm)"
        )
    if how == "ddp" and not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "parallel='ddp' needs a process group; write torch.distributed.init_process_group() "
            "first and start the program by torchrun, or leave parallel out"
        )
    for model in models if how else ():
        wrapper = next((name for name, is_it in _WRAPPERS.items() if is_it(model)), None)
        if wrapper:
            raise ValueError(
                f"parallel={how!r} wraps bare models, but one is in {wrapper} already; leave "
                "parallel out, or give the bare model"
            )
    if how == "dp":
        _refuse_data_parallel(models, recipe)
        _refuse_off_gpus(models, parallel.dp)


def _refuse_data_parallel(models: Iterable[nn.Module], recipe: Recipe) -> None:
    reason = recipe.refusal("data_parallel")
    if reason:
        raise ValueError(
            f"recipe {recipe.name!r} cannot be had with DataParallel: {reason}; write "
            "parallel='ddp', or leave that field out"
        )
    # A replica has its model's attributes, and what was compiled would run the model itself.
    if any(m._compiled_call_impl for model in models for m in model.modules()):  # noqa: SLF001
        raise ValueError(
            "parallel='dp' makes replicas of the model at every forward pass, which its compiled "
            "forward does not know; leave out compile(), or write parallel='ddp'"
        )


def _refuse_off_gpus(models: Iterable[nn.Module], options: Mapping[str, Any]) -> None:
    if not torch.cuda.is_available():
        raise RuntimeError(
            "parallel='dp' needs GPUs, and torch sees none; leave parallel out, or write "
            "parallel='ddp', which works on CPUs too"
        )
    for model in models:
        devices = list(dict.fromkeys(map(str, (t.device for t in _tensors(model)))))
        if len(devices) > 1 or not all(device.startswith("cuda") for device in devices):
            raise RuntimeError(
                f"parallel='dp' makes replicas of a model that is on one GPU, but one is on "
                f"{' and '.join(devices)}; write model.cuda() before its optimizer"
            )
        given = [_on_gpu(each) for each in options.get("device_ids") or ()]
        if devices and given and given[0] != devices[0]:
            raise ValueError(
                f"dp has device_ids {options['device_ids']}, but a model is on {devices[0]}; name "
                f"that first, or write model.to({given[0]!r}) before its optimizer"
            )


def _tensors(model: nn.Module) -> Iterable[torch.Tensor]:
    return chain(model.parameters(), model.buffers())


def _on_gpu(given: int | str | torch.device) -> str:
    return f"cuda:{given}" if isinstance(given, int) else str(torch.device(given))


def refuse_threads(models: Iterable[nn.Module], recipe: Recipe) -> None:
    """Refuse torch's own DataParallel for a recipe that its threads would not carry out.

    They have autocast on as the caller has, but in fp16 whatever the caller's format is.
    """
    reason = recipe.refusal("replica_threads")
    for model in models if reason else ():
        if isinstance(model, DataParallel) and len(model.device_ids) > 1:
            raise ValueError(
                f"recipe {recipe.name!r} cannot be had with torch's DataParallel: {reason}; write "
                "Engine(model, ..., parallel='dp') with the bare model"
            )


def refuse_zero(optimizers: Iterable[Optimizer], recipe: Recipe) -> None:
    """Refuse a `ZeroRedundancyOptimizer` where its parameters would be replaced by others."""
    reason = recipe.refusal("zero_optimizer")
    for optimizer in optimizers if reason else ():
        if is_zero(optimizer):
            raise TypeError(
                "ZeroRedundancyOptimizer has dealt out the model's own parameters, and under "
                f"recipe {recipe.name!r} {reason}; write "
                f"model = halfstep.shard(model, {recipe.name!r}), whose optimizer state is shared "
                "too, or recipe='fp16' or 'bf16'"
            )


def refuse_sharded_inputs(*, of_all: bool) -> None:
    """Refuse to limit a backward to parameters that FSDP2 shares.

    What autograd knows are the gathered parameters, not those that an optimizer holds.
    """
    if not of_all:
        raise RuntimeError(
            "engine.backward(optimizers=[...]) cannot be limited under halfstep.shard; leave "
            "optimizers out and detach() what the loss is not to reach, or write "
            "Engine(..., parallel='ddp')"
        )


def refuse_partial_backward() -> None:
    """Refuse a backward that reaches a part of a wrapped model: DDP would wait for the rest."""
    raise RuntimeError(
        "engine.backward(optimizers=[...]) reaches some parameters of a model in "
        "DistributedDataParallel, which waits for all of them; give every parameter of the model "
        "to an optimizer of the engine, or freeze it with requires_grad_(False) before "
        "Engine(..., parallel='ddp')"
    )


def refuse_sharded_late() -> None:
    """Refuse a model that was sharded after its optimizer took hold of the parameters."""
    raise RuntimeError(
        "fully_shard(engine.model) came after the engine, and replaced the parameters that its "
        "optimizer holds; write model = halfstep.shard(model, recipe), then the optimizer, then "
        "Engine(model, optimizer, recipe=recipe)"
    )


def refuse_idle(slots: Iterable[Slot]) -> None:
    """Refuse a step that no backward came before."""
    if not any(slot.pending for slot in slots):
        raise RuntimeError(
            "engine.step() was called without an engine.backward() since the last step; call "
            "engine.backward(loss) once or more for each step"
        )


def refuse_double_schedule(scheduler: LRScheduler) -> None:
    """Refuse a scheduler that the loop steps beside the engine: it would run twice as fast."""
    name = type(scheduler).__name__
    raise RuntimeError(
        f"{name}.step() was called past the engine, which steps this scheduler once for each real "
        f"optimizer step; delete the line, or leave scheduler={name}(...) out of Engine(...)"
    )


def refuse_without_closure(slots: Iterable[Slot]) -> None:
    """Refuse to step an optimizer that needs a closure without one."""
    for slot in slots:
        if needs_closure(slot.optimizer):
            raise TypeError(
                f"{type(slot.optimizer).__name__} evaluates the loss inside its step; {CLOSURE}"
            )


def refuse_closure(
    slots: Sequence[Slot], accumulate: int, clipping: Clipping, recipe: Recipe
) -> None:
    """Refuse a closure where the optimizer cannot be left alone with the loss."""
    plain = len(slots) == accumulate == 1 and not clipping
    if not plain or recipe.refusal("closure"):
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
