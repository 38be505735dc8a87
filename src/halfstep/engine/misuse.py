"""What a loop may get wrong around an engine, and the line to write instead."""

from __future__ import annotations

import warnings
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from halfstep.engine.parallel.ranks import is_zero
from halfstep.engine.traces import other_format_of_products
from halfstep.formats import format_name, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch.optim import Optimizer

    from halfstep.engine.assemble import Parallel
    from halfstep.recipe import Recipe


class EngineWarning(UserWarning):
    """Legal code that is probably not what was meant."""


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
        stacklevel=3,
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
