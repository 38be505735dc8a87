"""Item `activations`: compressed activations on ResNet-50, beside others at the same peak of bytes.

Checkpointing, selective checkpointing and offload treat the first blocks of the model, and as few
of them as bring the peak down to that of compressed activations. Where all blocks do not suffice,
all are treated, and the row says so.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from gpu_items.steps import by_engine, images
from gpu_items.turns import Variant, alternate, free, peak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from gpu_items import At
    from gpu_items.steps import Task
    from gpu_items.turns import Row, Step

    Forward = Callable[[torch.Tensor], torch.Tensor]

BITS = (8, 4, 2)
PEER = "engine, fp16"
TO_MEASURE = 45.0
"""Seconds that must be left to look for a number of blocks; without, all are treated."""


def rows(at: At) -> Iterator[Row]:
    """Yield the figures of whole steps; the peaks tell what each way saves."""
    task = images("resnet50", 256, 224, at, channels_last=True)
    compressed = {f"act{bits}": partial(by_engine, task, f"fp16+act{bits}") for bits in BITS}
    variants = [Variant(PEER, partial(by_engine, task, "fp16"))]
    variants += [Variant(f"{PEER}+{name}", start, PEER) for name, start in compressed.items()]
    further: dict[str, Row] = {}
    limits = {}
    for name, start in compressed.items():
        limits[name] = _peak(start, at)
        free()
    if not at.on_gpu:  # the limits are alike: none is known
        limits = dict([limits.popitem()])
    for way in WAYS:
        blocks = _blocks_for(task, way, limits, at)
        free()
        for name, found in blocks.items():
            treated = Treated(task, way, found["blocks"])
            label = f"{PEER}, {way}, peak of {name}"
            variants.append(Variant(label, partial(by_engine, treated.task, "fp16"), PEER))
            further[label] = found
    for row in alternate(variants, at):
        yield {"of": task.of, **row, **further.get(row["variant"], {})}


class Treated:
    """A task whose model treats the first blocks in a way that saves memory.

    Args:
        task: The task of a model of timm with `layer1` to `layer4`.
        way: A key of `WAYS`.
        count: The number of these blocks, which may be changed between steps.
    """

    def __init__(self, task: Task, way: str, count: int) -> None:
        self.count = count
        self.blocks = 0
        self.task = replace(task, make=partial(self._make, task))
        self._way = WAYS[way]

    def _make(self, task: Task) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = task.make()
        stages: list[Any] = [getattr(model, f"layer{stage}") for stage in range(1, 5)]
        for index, block in enumerate(block for stage in stages for block in stage):
            block.forward = partial(self._run, index, block.forward)
            self.blocks = index + 1
        return model, optimizer

    def _run(self, index: int, forward: Forward, values: torch.Tensor) -> torch.Tensor:
        return self._way(forward, values) if index < self.count else forward(values)


def _blocks_for(task: Task, way: str, limits: dict[str, int], at: At) -> dict[str, Row]:
    """Return how many blocks must be treated for each of several peaks, and whether that suffices.

    On a CPU, where no peak is known, all of them are.
    """
    treated = Treated(task, way, 0)
    before = torch.cuda.memory_allocated() if at.on_gpu else 0
    peaks: dict[int, int] = {}
    found = {}
    with ExitStack() as opened:
        step = by_engine(treated.task, "fp16", opened)

        def fits(count: int, limit: int) -> bool:
            if limit and count not in peaks and at.left() > TO_MEASURE:
                treated.count = count
                step()
                peaks[count] = peak(step, before, at) or 0
            return 0 < peaks.get(count, 0) <= limit

        for name, limit in limits.items():
            count = bisect_left(range(treated.blocks), True, key=partial(fits, limit=limit))  # noqa: FBT003
            found[name] = {
                "blocks": count,
                "of_blocks": treated.blocks,
                "limit_MiB": round(limit / 2**20, 1) if limit else None,
                "suffices": fits(count, limit),
            }
    return found


def _peak(start: Callable[[ExitStack], Step], at: At) -> int:
    """Return the peak of the bytes of a variant with its model; 0 on a CPU."""
    if not at.on_gpu:
        return 0
    before = torch.cuda.memory_allocated()
    with ExitStack() as opened:
        step = start(opened)
        step()
        step()  # with the momentum, and masks that are taken from the second step on
        return peak(step, before, at) or 0


def _selective(forward: Forward, values: torch.Tensor) -> torch.Tensor:
    """Recompute everything but the results of convolutions, which take the most time."""
    kept = partial(create_selective_checkpoint_contexts, [torch.ops.aten.convolution.default])
    found: torch.Tensor = checkpoint(forward, values, use_reentrant=False, context_fn=kept)
    return found


def _offloaded(forward: Forward, values: torch.Tensor) -> torch.Tensor:
    """Keep the activations in the memory of the host."""
    with save_on_cpu(pin_memory=torch.cuda.is_available()):
        return forward(values)


WAYS: dict[str, Callable[[Forward, torch.Tensor], torch.Tensor]] = {
    "checkpointing": partial(checkpoint, use_reentrant=False),
    "selective checkpointing": _selective,
    "offload": _offloaded,
}
"""The ways to run a block; plain checkpointing recomputes all of it in the backward pass."""
