"""Explains, without changing a model, which of its layers multiply in FP8 on a GPU, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from halfstep.mechanisms.float8.gain import Gains, table
from halfstep.mechanisms.float8.native import has_native
from halfstep.mechanisms.float8.technique import Float8Layers
from halfstep.mechanisms.products.layers import widths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.mechanisms.float8.gain import Source
    from halfstep.mechanisms.part import Whole


@dataclass(frozen=True, slots=True)
class ExplainedLayer:
    """What becomes of a linear or convolution layer.

    Attributes:
        name: Its name in the model.
        inputs: Features, or channels of a group.
        outputs: Features, or channels of a group.
        how: "native", "rehearsed" or "left out".
        reason: From how many samples on it is native, or why it is left out; "" for a rehearsal.
        fewest: From how many samples on it is native; None if it never is.
        samples: Its samples (tokens or pixels); None if unknown.
        gain: The time of its products in bf16 over that in FP8; None if unknown.
        source: Whether `gain` is measured or predicted; "" if it is unknown.
    """

    name: str
    inputs: int
    outputs: int
    how: str
    reason: str
    fewest: int | None = None
    samples: int | None = None
    gain: float | None = None
    source: Source | str = ""

    @property
    def computes(self) -> str:
        """What the layer does with these samples: "native", "rehearsed" or "left out"."""
        if self.fewest is None or self.samples is None or self.samples >= self.fewest:
            return self.how
        return "left out"


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


def explained(
    recipe: Whole,
    model: nn.Module,
    gains: Gains | None,
    samples: Mapping[str, int] | int | None = None,
) -> list[ExplainedLayer]:
    """Return what becomes of each linear and convolution layer under a recipe with FP8 products.

    Args:
        recipe: The recipe; it sets `float8`.
        model: The model, on any device.
        gains: The gains on the GPU; None for a device that rehearses FP8.
        samples: The samples of each layer by its name, or those of every layer; None if unknown.
    """
    scaling = recipe.get("float8")
    emulated = gains is None or scaling not in ("dynamic", "rowwise")
    technique = Float8Layers(
        "emulated" if emulated else scaling, own_formats=recipe.own_formats, gains=gains
    )
    left_out = technique.left_out_of([model])
    found = []
    for name, layer in model.named_modules():
        shape = widths(layer)
        if not shape:
            continue
        inputs, outputs = shape
        count = samples if samples is None or isinstance(samples, int) else samples.get(name)
        how, reason = (
            ("left out", left_out[layer].reason) if layer in left_out else ("rehearsed", "")
        )
        fewest, gain, source = None, None, ""
        if gains is not None and not emulated:
            pays = gains.fewest(inputs, outputs)
            if layer not in left_out:
                how, reason, fewest = "native", str(pays), pays.samples
            if count and reason == str(pays):
                gain, source = gains.gain(count, inputs, outputs)
        found.append(
            ExplainedLayer(name, inputs, outputs, how, reason, fewest, count, gain, source)
        )
    return found
