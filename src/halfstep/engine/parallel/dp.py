"""`torch.nn.DataParallel` under a recipe: one process, with a replica in a thread for each GPU.

Replicas have the recipe's changes to the model itself (formats, hooks, classes of layers), and
process-wide settings hold in every thread. Thread-local settings must be entered again in the
threads of the replicas: torch (2.15) itself enters only autocast there, and always in fp16.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.parallel import DataParallel
from torch.nn.parallel.parallel_apply import parallel_apply

from halfstep.engine.thread_state import ThreadState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfstep.recipe import Recipe


class ThreadedReplicas(DataParallel[nn.Module]):
    """`DataParallel` whose replicas run with the thread-local settings of the calling thread."""

    def parallel_apply(
        self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any
    ) -> list[Any]:
        """Run each replica on its part of the batch, in a separate thread."""
        state = ThreadState(self.src_device_obj.type)
        # The cast is safe: torch's `parallel_apply` only calls the replicas.
        calls = cast("list[nn.Module]", [state.carried_by(replica) for replica in replicas])
        return parallel_apply(calls, inputs, kwargs, self.device_ids[: len(replicas)])


def on_all_gpus(model: nn.Module, options: Mapping[str, Any]) -> nn.Module:
    """Return `model` in `DataParallel`; if it has no parameters, return `model` itself.

    Args:
        model: The model, on the GPU that gathers the outputs and keeps the running statistics.
        options: Arguments of `DataParallel`; by default it uses all GPUs.
    """
    param = next(model.parameters(), None)
    if param is None:
        return model
    home = param.device.index
    others = (gpu for gpu in range(torch.cuda.device_count()) if gpu != home)
    return ThreadedReplicas(model, **{"device_ids": [home, *others], **options})


def refuse_threads(models: Iterable[nn.Module], recipe: Recipe) -> None:
    """Refuse models in torch's own DataParallel if its threads would not follow the recipe.

    The threads enable autocast if the calling thread does, but always in fp16.
    """
    reason = recipe.refusal("replica_threads")
    for model in models if reason else ():
        if isinstance(model, DataParallel) and len(model.device_ids) > 1:
            raise ValueError(
                f"recipe {recipe.name!r} cannot be used with torch's DataParallel: {reason}; write "
                "Engine(model, ..., parallel='dp') with the bare model"
            )


def refuse_data_parallel(
    models: Sequence[nn.Module], recipe: Recipe, options: Mapping[str, Any]
) -> None:
    """Refuse models or a recipe that do not work with `parallel="dp"`.

    Raises:
        ValueError: If the recipe does not work with DataParallel, a model is compiled, or the first
            GPU in `options["device_ids"]` is not the GPU of a model.
        RuntimeError: If there is no GPU, or a model is not on exactly one GPU.
    """
    reason = recipe.refusal("data_parallel")
    if reason:
        raise ValueError(
            f"recipe {recipe.name!r} cannot be used with DataParallel: {reason}; write "
            "parallel='ddp', or leave that field out"
        )
    # A replica copies the model's attributes, so its compiled forward would run the original model.
    if any(m._compiled_call_impl for model in models for m in model.modules()):  # noqa: SLF001
        raise ValueError(
            "parallel='dp' replicates the model at every forward pass, which does not work with a "
            "compiled forward; leave out compile(), or write parallel='ddp'"
        )
    _refuse_off_gpus(models, options)


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
                f"parallel='dp' replicates a model from one GPU, but a model is on "
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
