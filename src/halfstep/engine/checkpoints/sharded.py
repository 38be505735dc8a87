"""Checkpoints of sharded models: each process writes its part; any number of processes can read it.

`torch.distributed.checkpoint` writes the tensors. All other data is in a separate file of the same
directory. Loading either of them runs no code from the checkpoint. `.metadata` is written last, so
a directory that contains it is complete.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from halfstep.engine.checkpoints.metadata import refuse_code
from halfstep.engine.processes.shards import is_sharded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torch import nn
    from torch.distributed.tensor import DTensor

    from halfstep.engine.engine import Engine

REST = "rest.pt"
"""Name of the file for all data that is not a tensor."""


def save_sharded(
    directory: str | Path, engine: Engine, *, extra: Mapping[str, Any] | None = None
) -> None:
    """Write the models and the engine's state to a directory; every process must call it.

    The state includes a partly filled accumulation window. Tensors that are not sharded and may
    differ between processes, such as BatchNorm statistics, are saved from rank 0.

    Args:
        directory: The directory to write; it is created if it does not exist.
        engine: The engine to save.
        extra: More data to save, from rank 0: plain containers, numbers and strings.

    Raises:
        OSError: On every process, if any process cannot write.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    where = Path(directory)
    first = not dist.is_initialized() or dist.get_rank() == 0
    tensors: dict[str, torch.Tensor] = {}
    rest = _take_apart(_whole(engine), "", tensors)
    _write_rest(where, {"state": rest, "extra": dict(extra or {})}, first=first)
    mine = {name: tensor for name, tensor in tensors.items() if first or is_sharded(tensor)}
    with _quietly(f"cannot write {str(where)!r}"):
        save(mine, checkpoint_id=where, no_dist=not dist.is_initialized())


def load_sharded(directory: str | Path, engine: Engine) -> dict[str, Any]:
    """Load a checkpoint of `save_sharded`, with any number of processes.

    Args:
        directory: The directory of the checkpoint.
        engine: Built like the saved engine. Its models may be sharded, in DDP, or neither.

    Returns:
        The `extra` that was saved.

    Raises:
        ValueError: If the checkpoint is incomplete, has another number of models, or contains
            pickled objects other than plain data and tensors.
        RuntimeError: If the names or shapes of a model's tensors differ.
        OSError: If the checkpoint cannot be read.
    """
    state, extra = _read(Path(directory), _shared_params(engine), alone=not dist.is_initialized())
    _take_over(engine, state)
    return extra


def read_sharded(directory: str | Path) -> dict[str, Any]:
    """Read a checkpoint of `save_sharded` in this process alone, as unsharded CPU tensors.

    Args:
        directory: The directory of the checkpoint.

    Returns:
        The state of each model under "models", and the engine's state under "engine".

    Raises:
        ValueError: If the checkpoint is incomplete or holds anything but data.
        OSError: If the checkpoint cannot be read.
    """
    state, _ = _read(Path(directory), lambda _: None, alone=True)
    return state


def load_whole(state: Mapping[str, Any], engine: Engine) -> None:
    """Load a state of unsharded tensors; each process keeps its part if the models are sharded.

    Args:
        state: A state that `read_sharded` returned, the same on every process.
        engine: Built like the saved engine.

    Raises:
        ValueError: If the state has another number of models than the engine.
    """
    params = [param for model in engine.bare_models for param in model.parameters()]
    _take_over(engine, _shared_out(state, engine) if any(map(is_sharded, params)) else state)


def full_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the whole fp32 state dict of a model, on the CPU; every process must call it.

    Args:
        model: A model from `shard`, or any other model.

    Returns:
        The state dict on rank 0. On other ranks the same, or an empty one if the model is sharded.
    """
    state: dict[str, torch.Tensor] = {}
    first = not dist.is_initialized() or dist.get_rank() == 0
    for name, value in model.state_dict().items():
        # Gather one tensor at a time, so that ranks other than 0 hold only one whole tensor.
        whole = value.full_tensor() if is_sharded(value) else value
        if first or not any(is_sharded(param) for param in model.parameters()):
            state[name] = whole.cpu()
    return state


def _write_rest(where: Path, rest: dict[str, Any], *, first: bool) -> None:
    said: list[str | None] = [None]
    if first:
        try:
            where.mkdir(parents=True, exist_ok=True)
            unfinished = where / f"{REST}.part"
            with unfinished.open("wb") as file:
                torch.save(rest, file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(where / REST)
        except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError on a full disk
            said = [" ".join(str(error).split())]
    if dist.is_initialized():
        dist.broadcast_object_list(said, src=0)
    if said[0] is not None:
        raise OSError(f"cannot write {str(where)!r}: {said[0]}")


def _read(
    where: Path, like: Callable[[str], torch.Tensor | None], *, alone: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    from torch.distributed.checkpoint.state_dict_loader import load

    if not ((where / ".metadata").exists() and (where / REST).exists()):
        raise ValueError(f"{where} is not a complete checkpoint: .metadata or {REST} is missing")
    refuse_code(where / ".metadata")
    saved = torch.load(where / REST, weights_only=True)
    tensors = {name: _room_for(place, like(name)) for name, place in _places(saved["state"])}
    with _quietly(f"cannot read {str(where)!r}"):
        load(tensors, checkpoint_id=where, no_dist=alone)
    return _put_together(saved["state"], tensors), saved["extra"]


def _shared_out(state: Mapping[str, Any], engine: Engine) -> dict[str, Any]:
    from torch.distributed.tensor import distribute_tensor

    like = _shared_params(engine)
    tensors: dict[str, torch.Tensor] = {}
    rest = _take_apart(dict(state), "", tensors)
    for name, tensor in tensors.items():
        param = like(name)
        if param is not None and param.shape == tensor.shape:
            shared = cast("DTensor", param)
            # No source rank: every process has the whole tensor, and takes its part from it.
            tensors[name] = distribute_tensor(
                tensor.to(shared.device), shared.device_mesh, shared.placements, src_data_rank=None
            )
    whole: dict[str, Any] = _put_together(rest, tensors)
    return whole


def _take_over(engine: Engine, state: Mapping[str, Any]) -> None:
    if len(state["models"]) != len(engine.bare_models):
        raise ValueError(
            f"the checkpoint has {len(state['models'])} models, this engine "
            f"{len(engine.bare_models)}"
        )
    for model, model_state in zip(engine.bare_models, state["models"], strict=True):
        model.load_state_dict(model_state)
    engine.load_state_dict(state["engine"])


@contextmanager
def _quietly(problem: str) -> Iterator[None]:
    """Raise an `OSError` in place of torch's `CheckpointException`.

    That class does not derive from `Exception`, and its text contains tracebacks.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            # torch warns that it runs in one process only, which is intended here.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        reason = " ".join(str(cause).split())
        raise OSError(f"{problem}: rank {rank}: {type(cause).__name__}: {reason}") from error


def _whole(engine: Engine) -> dict[str, Any]:
    return {
        "models": [dict(model.state_dict()) for model in engine.bare_models],
        "engine": engine.state_dict(),
    }


_MARK = "a tensor of"


def _take_apart(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Move the tensors of nested containers to `tensors`.

    Each is replaced by a dictionary with its name, shape and dtype.
    """
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


def _shared_params(engine: Engine) -> Callable[[str], torch.Tensor | None]:
    """Return a function that finds the sharded parameter to which a tensor of the state belongs.

    The function takes the name of the tensor, which is a path: "/models/0/<parameter>",
    "/engine/optimizers/0/state/<i>/<key>", and so on. It returns None if none exists.
    """
    of_models = [dict(each.named_parameters(remove_duplicate=False)) for each in engine.bare_models]
    of_optimizers = [
        [param for group in each.param_groups for param in group["params"]]
        for each in engine.optimizers
    ]

    def find(name: str) -> torch.Tensor | None:
        _, where, *path = name.split("/")
        param: torch.Tensor | None = None
        if where == "models":
            param = of_models[int(path[0])].get("/".join(path[1:]))
        elif path[0] in {"optimizers", "windows", "averages"} and path[3:]:
            param = of_optimizers[int(path[1])][int(path[3])]
        return param if param is not None and is_sharded(param) else None

    return find
