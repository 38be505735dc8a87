"""Applies `distributed.strategy`: how several processes, or several GPUs of one, train a model.

Configs that cannot work with the strategy are refused here, before anything is built or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from halfstep.engine import shard
from halfstep.engine.recompute import recompute
from halfstep.errors import UserError
from halfstep.train.config.optimizer import LowBitAdamConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

    from halfstep.train.config import Config
    from halfstep.train.processes.processes import Processes

_ELEMENT_BY_ELEMENT = ("sgd", "adam", "adamw")
"""Optimizers that update each element of a weight by itself, so that weights can be sharded."""


def way(config: Config, processes: Processes) -> Literal["ddp", "fsdp", "dp"] | None:
    """Return the parallel strategy of the run; None for one process on one device."""
    strategy = config.distributed.strategy
    if strategy == "dp" or (strategy == "fsdp" and processes.size > 1):
        return strategy
    return "ddp" if processes.joined else None


def shared_out(model: nn.Module, config: Config) -> nn.Module:
    """Shard a model that every process holds completely; call it before building an optimizer."""
    try:
        return shard(
            model,
            config.build_recipe(),
            checkpoint_activations=config.model.checkpoint_activations,
            sync_batchnorm=config.distributed.sync_batchnorm,
        )
    except (TypeError, ValueError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"distributed.strategy is 'fsdp', which model {config.model.name!r} does not support: "
            f"{reason}; write distributed.strategy=ddp"
        ) from error


def computed_again(model: nn.Module, config: Config) -> None:
    """Use activation checkpointing in the blocks of a model; refuse a model without blocks."""
    try:
        recompute(model)
    except ValueError as error:
        raise UserError(
            f"model.checkpoint_activations is true, which model {config.model.name!r} does not "
            "support: "
            f"{error}; write model.checkpoint_activations=false"
        ) from error


def refuse(config: Config, device: torch.device, processes: Processes) -> None:
    """Refuse a config that cannot work with this number of processes or on this device."""
    if config.distributed.strategy == "dp":
        _refuse_dp(config, device, processes)
    if processes.size == 1:
        return
    if config.probes:
        raise UserError(
            f"probes is true, but a probe looks into one process and this run has {processes.size}"
            "; write probes=false"
        )
    if config.auto_microbatch and config.distributed.sync_batchnorm:
        raise UserError(
            "auto_microbatch and distributed.sync_batchnorm are both true, but a process that runs "
            "out of memory would leave the others waiting for its statistics; write "
            "auto_microbatch=false or distributed.sync_batchnorm=false"
        )
    if config.distributed.strategy == "fsdp":
        _refuse_fsdp(config)


def _refuse_dp(config: Config, device: torch.device, processes: Processes) -> None:
    instead = "write distributed.strategy=ddp, and run halfstep train --gpus N for N GPUs"
    if processes.joined:
        raise UserError(
            "distributed.strategy is 'dp', which is one process on several GPUs, but torchrun or "
            f"halfstep train --processes has started {processes.size}; {instead}"
        )
    if device.type != "cuda":
        raise UserError(
            f"distributed.strategy is 'dp', which needs GPUs, but device is {device.type!r}; "
            f"{instead}"
        )
    if config.model.compile:
        raise UserError(
            "model.compile is true, which cannot be used with distributed.strategy=dp; "
            "write model.compile=false, or distributed.strategy=ddp"
        )


def _refuse_fsdp(config: Config) -> None:
    recipe = config.build_recipe()
    reason = recipe.refusal("fully_shard")
    if reason:
        raise UserError(
            f"recipe {recipe.name!r} cannot be used with distributed.strategy=fsdp: {reason}; "
            "write "
            "recipe=o2, or distributed.strategy=ddp"
        )
    if isinstance(config.optimizer, LowBitAdamConfig):
        raise UserError(
            f"optimizer.name is {config.optimizer.name!r}, whose moments are tensors of torchao's "
            "own, which cannot be saved in parts, as distributed.strategy=fsdp does; write "
            "optimizer.name=adamw optimizer.state=bf16, or distributed.strategy=ddp"
        )
    if config.optimizer.name not in _ELEMENT_BY_ELEMENT:
        raise UserError(
            f"optimizer.name is {config.optimizer.name!r}, which may need whole weights, but under "
            "distributed.strategy=fsdp each process holds a part of them; allowed: "
            f"{', '.join(_ELEMENT_BY_ELEMENT)}; or write distributed.strategy=ddp"
        )
    for field in ("compile", "channels_last"):
        if getattr(config.model, field):
            raise UserError(
                f"model.{field} is true, which cannot be used with distributed.strategy="
                f"fsdp; write model.{field}=false, or distributed.strategy=ddp"
            )
    if config.auto_microbatch:
        raise UserError(
            "auto_microbatch is true, but under distributed.strategy=fsdp a process that runs out "
            "of memory would leave the others waiting for its part of the model; write "
            "auto_microbatch=false with a smaller batch_size, or distributed.strategy=ddp"
        )
