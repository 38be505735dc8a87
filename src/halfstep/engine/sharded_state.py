"""Checkpoints of sharded models: each process writes its part, any number of them reads it.

Tensors go through `torch.distributed.checkpoint`; what is no tensor lies beside them in a file that
loads safely. The last file that appears is `.metadata`: a directory that has it is whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from halfstep.engine.shards import is_sharded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from halfstep.engine.engine import Engine

REST = "rest.pt"
"""The file of what is no tensor."""


def save_sharded(
    directory: str | Path, engine: Engine, *, extra: Mapping[str, Any] | None = None
) -> None:
    """Write models and engine state; every process of the engine calls it, for a new directory.

    A half-filled accumulation window is part of it. Buffers and other tensors that each process has
    its own of (BatchNorm's statistics, if not synchronized) are those of the first one.

    Args:
        directory: Where to; made if it is not there.
        engine: What to save.
        extra: Plain containers, numbers and strings of the first process.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    where = Path(directory)
    where.mkdir(parents=True, exist_ok=True)
    first = not dist.is_initialized() or dist.get_rank() == 0
    tensors: dict[str, torch.Tensor] = {}
    rest = _take_apart(_whole(engine), "", tensors)
    if first:
        unfinished = where / f"{REST}.part"
        torch.save({"state": rest, "extra": dict(extra or {})}, unfinished)
        unfinished.replace(where / REST)
    mine = {name: tensor for name, tensor in tensors.items() if first or is_sharded(tensor)}
    save(mine, checkpoint_id=where, no_dist=not dist.is_initialized())


def load_sharded(directory: str | Path, engine: Engine) -> dict[str, Any]:
    """Take over what `save_sharded` wrote, under any number of processes, one included.

    Args:
        directory: What it wrote to.
        engine: Built as the one that was saved, its models sharded, in DDP, or plain.

    Returns:
        The `extra` that was saved.

    Raises:
        ValueError: If the directory holds no whole checkpoint, or one of other models.
    """
    from torch.distributed.checkpoint.state_dict_loader import load

    where = Path(directory)
    if not ((where / ".metadata").exists() and (where / REST).exists()):
        raise ValueError(f"{where} is no whole checkpoint: .metadata or {REST} is missing")
    saved = torch.load(where / REST, weights_only=True)
    tensors = {
        name: _room_for(place, _shared_like(name, engine))
        for name, place in _places(saved["state"])
    }
    load(tensors, checkpoint_id=where, no_dist=not dist.is_initialized())
    state = _put_together(saved["state"], tensors)
    if len(state["models"]) != len(engine.bare_models):
        raise ValueError(
            f"{where} has {len(state['models'])} models, this engine {len(engine.bare_models)}"
        )
    for model, model_state in zip(engine.bare_models, state["models"], strict=True):
        model.load_state_dict(model_state)
    engine.load_state_dict(state["engine"])
    extra: dict[str, Any] = saved["extra"]
    return extra


def full_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the whole fp32 state of a model, on the CPU; every process calls it.

    Args:
        model: A model from `shard`, or any other.

    Returns:
        The state on the first process; nothing on the others if the model is sharded.
    """
    state: dict[str, torch.Tensor] = {}
    first = not dist.is_initialized() or dist.get_rank() == 0
    for name, value in model.state_dict().items():
        # One after the other, so that no process holds more than one whole tensor too many.
        whole = value.full_tensor() if is_sharded(value) else value
        if first or not any(is_sharded(param) for param in model.parameters()):
            state[name] = whole.cpu()
    return state


def _whole(engine: Engine) -> dict[str, Any]:
    return {
        "models": [dict(model.state_dict()) for model in engine.bare_models],
        "engine": engine.state_dict(),
    }


_MARK = "a tensor of"


def _take_apart(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Move the tensors of nested containers to `tensors`, and leave their shapes and dtypes."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach()
        return {_MARK: [name, list(value.shape), value.dtype]}
    if isinstance(value, dict):
        return {key: _take_apart(each, f"{name}/{key}", tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_take_apart(each, f"{name}/{at}", tensors) for at, each in enumerate(value)]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


def _places(value: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict) and _MARK in value:
        yield value[_MARK][0], value
    elif isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _places(each)


def _put_together(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if _MARK in value:
            return tensors[value[_MARK][0]]
        return {key: _put_together(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_put_together(each, tensors) for each in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


def _room_for(place: Mapping[str, Any], like: torch.Tensor | None) -> torch.Tensor:
    _, shape, dtype = place[_MARK]
    if like is not None and list(like.shape) == shape:
        return torch.zeros_like(like, dtype=dtype, requires_grad=False)
    return torch.zeros(shape, dtype=dtype)


def _shared_like(name: str, engine: Engine) -> torch.Tensor | None:
    """Return the parameter that a tensor of the state belongs to, if it is sharded.

    Names are paths: "/models/0/<parameter>", "/engine/optimizers/0/state/<i>/<key>", and so on.
    """
    _, where, *path = name.split("/")
    param: torch.Tensor | None = None
    if where == "models":
        param = dict(engine.bare_models[int(path[0])].named_parameters(remove_duplicate=False)).get(
            "/".join(path[1:])
        )
    elif path[0] in {"optimizers", "windows", "averages"} and path[3:]:
        held = engine.optimizers[int(path[1])].param_groups
        params = [each for group in held for each in group["params"]]
        param = params[int(path[3])]
    return param if param is not None and is_sharded(param) else None
