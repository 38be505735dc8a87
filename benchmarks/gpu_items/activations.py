"""Item `activations`: compressed activations on ResNet-50, and the speed of their kernels."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from gpu_items.steps import by_engine, images
from gpu_items.turns import Variant, alternate, rounded
from halfstep.mechanisms.activations.packing import Draw, pack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row

BITS = (8, 4, 2)
ELEMENTS = 2**28
PEER = "engine, fp16"
COPY = "copy"


def rows(at: At) -> Iterator[Row]:
    """Yield the figures of whole steps, then of the kernels alone."""
    task = images("resnet50", 256, 224, at, channels_last=True)
    variants = [
        Variant(PEER, partial(by_engine, task, "fp16")),
        *(
            Variant(f"engine, fp16+act{bits}", partial(by_engine, task, f"fp16+act{bits}"), PEER)
            for bits in BITS
        ),
    ]
    for row in alternate(variants, at):
        yield {"of": task.of, **row}
    yield from kernels(at)


def kernels(at: At) -> Iterator[Row]:
    """Yield the gigabytes a second of packing and unpacking fp16, read and written together."""
    elements = 2**12 if at.toy else ELEMENTS
    values = torch.randn(elements, device=at.device, dtype=torch.float16)
    packed = {bits: pack(values, bits, draw=Draw(1)) for bits in BITS}
    moved = {COPY: 2 * values.nbytes}
    variants = [Variant(COPY, lambda _: values.clone)]
    for bits, each in packed.items():
        steps = {
            f"pack, {bits} bits": partial(pack, values, bits, draw=Draw(1)),
            f"unpack, {bits} bits": each.unpack,
        }
        moved |= dict.fromkeys(steps, values.nbytes + each.nbytes)
        variants += [Variant(name, lambda _, step=step: step, COPY) for name, step in steps.items()]
    for row in alternate(variants, at):
        speeds = {}
        if "ms" in row:
            of = {name: row["ms"][name] for name in ("median", "high", "low")}
            rate = {name: rounded(moved[row["variant"]] / 1e6 / ms) for name, ms in of.items()}
            # The longest times are the lowest speeds.
            speeds = {"median": rate["median"], "low": rate["high"], "high": rate["low"]}
        yield {"of": f"{elements:,} elements of fp16", **row, "GB_per_s": speeds}
