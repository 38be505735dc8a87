"""Item `activations`: compressed activations on ResNet-50, beside other ways to save memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from gpu_items.steps import by_engine, images
from gpu_items.turns import Variant, alternate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from gpu_items import At
    from gpu_items.steps import Task
    from gpu_items.turns import Row

BITS = (8, 4, 2)
PEER = "engine, fp16"


def rows(at: At) -> Iterator[Row]:
    """Yield the figures of whole steps; the peaks tell what each way saves."""
    task = images("resnet50", 256, 224, at, channels_last=True)
    variants = [
        Variant(PEER, partial(by_engine, task, "fp16")),
        *(
            Variant(f"engine, fp16+act{bits}", partial(by_engine, task, f"fp16+act{bits}"), PEER)
            for bits in BITS
        ),
        *(
            Variant(f"{PEER}, {name}", partial(by_engine, changed(task), "fp16"), PEER)
            for name, changed in OTHERS.items()
        ),
    ]
    for row in alternate(variants, at):
        yield {"of": task.of, **row}


def checkpointed(task: Task) -> Task:
    """Recompute the activations of each block in the backward pass."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = task.make()
        model.set_grad_checkpointing(True)
        return model, optimizer

    return replace(task, make=make)


def selective(task: Task) -> Task:
    """Recompute everything but the results of convolutions, which take the most time."""
    context_fn = partial(create_selective_checkpoint_contexts, [torch.ops.aten.convolution.default])

    def loss(model: nn.Module) -> torch.Tensor:
        found: torch.Tensor = checkpoint(
            task.loss, model, use_reentrant=False, context_fn=context_fn
        )
        return found

    return replace(task, loss=loss)


def offloaded(task: Task) -> Task:
    """Keep the activations in the memory of the host."""

    def loss(model: nn.Module) -> torch.Tensor:
        with save_on_cpu(pin_memory=torch.cuda.is_available()):
            return task.loss(model)

    return replace(task, loss=loss)


OTHERS = {
    "checkpointing": checkpointed,
    "selective checkpointing": selective,
    "offload": offloaded,
}
