"""Which layers of a model would multiply natively in FP8 on a GPU, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from halfstep.mechanisms.float8.gain import Gains, table
from halfstep.mechanisms.float8.native import has_native
from halfstep.mechanisms.products.layers import layers_of

if TYPE_CHECKING:
    from torch import nn

    from halfstep.mechanisms.float8.technique import Float8Layers
    from halfstep.mechanisms.part import ExplainedLayer


def gains_on(device: str) -> Gains | None:
    """Return the gains on "cuda", "cuda:1" or a GPU of the table; None where FP8 is rehearsed.

    Raises:
        ValueError: If there is no such device.
    """
    if device in table()["gpus"]:
        return Gains.named(device)
    known = ", ".join(table()["gpus"])
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}; allowed: cpu, cuda, cuda:1, {known}") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but no GPU is here; write one of {known}")
    return Gains.of(where) if has_native(where) else None


def native_layers(
    layers: list[ExplainedLayer], model: nn.Module, technique: Float8Layers, gains: Gains
) -> list[ExplainedLayer]:
    """Return the layers of a model with what a GPU decides of them.

    Args:
        layers: The layers as they are where FP8 is rehearsed, with their samples.
        model: The model.
        technique: The technique, with the gains on the GPU.
        gains: The same gains.
    """
    left_out = technique.left_out_of([model])
    found = []
    for row, (_, layer, shape) in zip(layers, layers_of(model), strict=True):
        pays = gains.fewest(*shape)
        decided = replace(row, how="native", reason=str(pays), fewest=pays.samples)
        if layer in left_out:
            decided = replace(row, how="left out", reason=left_out[layer].reason)
        if row.samples and decided.reason == str(pays):
            value, source = gains.gain(row.samples, *shape)
            decided = replace(decided, gain=value, source=source)
        found.append(decided)
    return found
