"""Item `fp8-shapes`: does the table of gains know which layers are faster in FP8?

The shapes and their predicted gains were committed before any was measured: `fp8_shapes.json`, half
of which should gain and half lose more than 5 %. A row for each shape has its measured gain, as
`gains.toml` has it; the last row counts the signs that are right. A gain is one of time on the
device: a large product before each turn lets the host launch all its steps in advance.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from gpu_items.turns import RESERVE, milliseconds, rounded
from halfstep.mechanisms.float8.native import NativeFloat8
from halfstep.mechanisms.float8.technique import Float8Layers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row, Step

SHAPES = Path(__file__).with_name("fp8_shapes.json")
WARM_STEPS, STEPS, TURNS = 3, 8, 5
AHEAD = 16384
"""The size of the square matrices whose product is before a turn: about 12 ms on an H200."""


class InFp8(Float8Layers):
    """FP8 layers that are native whatever they gain; on a CPU they are emulated."""

    def native(self, layer: nn.Module) -> NativeFloat8 | None:
        """Return the product of a GPU."""
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        return NativeFloat8("dynamic") if weight.is_cuda else None

    def left_out(self, layer: nn.Module) -> str:
        """Return "": every layer is taken."""
        del layer
        return ""

    def native_reason(self, layer: nn.Module) -> str:
        """Return nothing."""
        del layer
        return ""


def rows(at: At) -> Iterator[Row]:
    """Yield the gain of each shape, then how many signs were predicted right."""
    right, all_ = 0, 0
    for samples, inputs, outputs, predicted in json.loads(SHAPES.read_text())["shapes"]:
        if at.left() < RESERVE or (at.toy and all_ == 2):
            break
        shape = (32, 32, 32) if at.toy else (samples, inputs, outputs)
        gain = measured(at, *shape)
        right, all_ = right + ((gain > 1) == (predicted > 1)), all_ + 1
        yield {
            "of": "a linear layer, forward and backward, with fp32 weights under autocast",
            "samples": samples, "in": inputs, "out": outputs,
            "predicted_gain": predicted, "gain": rounded(gain),
        }  # fmt: skip
    yield {"of": "signs", "right": right, "shapes": all_}


def measured(at: At, samples: int, inputs: int, outputs: int) -> float:
    """Return the time of a layer in bf16 over that in FP8, the median of turns."""
    with torch.device(at.device):
        value = torch.randn(samples, inputs, dtype=torch.bfloat16, requires_grad=True)
        layers = [nn.Linear(inputs, outputs, bias=False) for _ in range(2)]
        cotangent = torch.randn(samples, outputs, dtype=torch.bfloat16)
    technique = InFp8("dynamic", dtype=torch.bfloat16)
    technique.prepare(layers[1:], [])
    plain, fp8 = (_step(at, layer, value, cotangent, technique) for layer in layers)
    size = 32 if at.toy else AHEAD
    ahead = torch.zeros(size, size, dtype=torch.bfloat16, device=at.device)

    def mean(step: Step) -> float:
        """Return the milliseconds of a step, without the first, which follows the product."""
        counted = iter(range(STEPS + 1))

        def after_product() -> None:
            if next(counted) == 0:
                torch.mm(ahead, ahead)
            step()

        return statistics.fmean(milliseconds(after_product, STEPS + 1, at)[1:])

    for step in (plain, fp8):
        milliseconds(step, WARM_STEPS, at)
    ratios = [mean(plain) / mean(fp8) for _ in range(1 if at.toy else TURNS)]
    technique.close()
    return statistics.median(ratios)


def _step(
    at: At, layer: nn.Module, value: torch.Tensor, cotangent: torch.Tensor, technique: InFp8
) -> Step:
    """Return a step of one micro-step, in which the weight changes."""
    device, weight = torch.device(at.device), layer.weight
    assert isinstance(weight, torch.Tensor)

    def step() -> None:
        with torch.no_grad():
            weight[0, 0] = 0.0
        with technique.forward(device), torch.autocast(device.type, torch.bfloat16):
            output = layer(value)
        output.backward(cotangent)
        weight.grad = value.grad = None

    return step
