"""`torch.nn.DataParallel` under a recipe: one process, and on each GPU a replica in a thread.

What a recipe has changed in the model itself (formats, hooks, classes of layers) its replicas have
too, and what it has set for the process holds in every thread. Autocast is a setting of the thread:
torch (2.15) turns it on in those of the replicas, but always in fp16.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.parallel import DataParallel
from torch.nn.parallel.parallel_apply import parallel_apply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager


class ThreadedReplicas(DataParallel[nn.Module]):
    """`DataParallel` whose replicas compute in the autocast of the thread that calls it."""

    def parallel_apply(
        self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any
    ) -> list[Any]:
        """Run each replica on its part of the batch, in a thread of its own."""
        entered = _autocast_here(self.src_device_obj.type)
        # They are called, and nothing else.
        calls = cast("list[nn.Module]", [partial(_called, each, entered) for each in replicas])
        return parallel_apply(calls, inputs, kwargs, self.device_ids[: len(replicas)])


def on_all_gpus(model: nn.Module, options: Mapping[str, Any]) -> nn.Module:
    """Return `model` in `DataParallel`; without parameters, `model` itself.

    Args:
        model: On the GPU that gathers the outputs and keeps the running statistics.
        options: Arguments of `DataParallel`; by default its replicas are on all GPUs.
    """
    param = next(model.parameters(), None)
    if param is None:
        return model
    home = param.device.index
    others = (gpu for gpu in range(torch.cuda.device_count()) if gpu != home)
    return ThreadedReplicas(model, **{"device_ids": [home, *others], **options})


def _autocast_here(device_type: str) -> Callable[[], AbstractContextManager[Any]]:
    return partial(
        torch.autocast,
        device_type,
        dtype=torch.get_autocast_dtype(device_type),
        enabled=torch.is_autocast_enabled(device_type),
        cache_enabled=torch.is_autocast_cache_enabled(),
    )


def _called(
    replica: nn.Module,
    entered: Callable[[], AbstractContextManager[Any]],
    *args: Any,
    **kwargs: Any,
) -> Any:
    with entered():
        return replica(*args, **kwargs)
