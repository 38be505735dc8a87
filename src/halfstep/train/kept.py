"""What a process keeps from run to run: images that are read, and models that may be compiled.

Only a process that trains many runs, one after the other, keeps anything (`keeping`). A run that
takes something kept is bitwise the run of a new process: the model is built anew, from the same
random numbers, and its values are copied into the model that is kept.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from torch import nn

    from halfstep.train.config import Config

_T = TypeVar("_T")


class _Kept:
    def __init__(self) -> None:
        self.models: dict[str, nn.Module] = {}
        self.others: dict[Any, Any] = {}


_active: _Kept | None = None


@contextmanager
def keeping() -> Iterator[None]:
    """Keep models and images from run to run while the block runs."""
    global _active  # noqa: PLW0603  (it is of the process)
    before, _active = _active, _Kept()
    try:
        yield
    finally:
        _active = before


def forget() -> None:
    """Drop everything that is kept: a run has failed, and may have left anything behind."""
    if _active is not None:
        _active.models.clear()
        _active.others.clear()


def recall(key: Any, make: Callable[[], _T]) -> _T:
    """Return what was made for a key, or make it; without `keeping`, always make it."""
    if _active is None:
        return make()
    if key not in _active.others:
        _active.others[key] = make()
    thing: _T = _active.others[key]
    return thing


def model(config: Config, built: nn.Module, device: torch.device) -> nn.Module:
    """Return a model with the values of one that was just built: a kept one, or that one itself.

    Models of the user are not kept, because code may keep a state of its own in them.

    Args:
        config: The config of the run. A kept model is used again only under the same settings, but
            for the seed.
        built: The model that a new process would train, on the CPU.
        device: The device to train on.
    """
    if _active is None or config.model.name.startswith("import:"):
        return built.to(device)
    settings = config.model_dump(mode="json", exclude={"seed", "name", "description"})
    key = json.dumps([settings, str(device)], sort_keys=True)
    kept = _active.models.get(key)
    if kept is None:
        kept = _active.models[key] = built.to(device)
        return kept
    import torch

    with torch.no_grad():
        for mine, values in zip(_tensors(kept), _tensors(built), strict=True):
            mine.copy_(values)
    for parameter, fresh in zip(kept.parameters(), built.parameters(), strict=True):
        parameter.grad = None
        parameter.requires_grad_(fresh.requires_grad)
    for mine_module, fresh_module in zip(kept.modules(), built.modules(), strict=True):
        mine_module.training = fresh_module.training
    return kept


def bytes_of_others(mine: nn.Module) -> int:
    """Return the bytes of the kept models besides one: they are not of its run."""
    models = [] if _active is None else _active.models.values()
    return sum(tensor.nbytes for other in models if other is not mine for tensor in _tensors(other))


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]
