"""A CPU that has FP8 units: torch's `scaled_mm` runs there, or a product of the same factors."""

from __future__ import annotations

import pytest
import torch

from halfstep.mechanisms.float8 import native, technique
from halfstep.mechanisms.float8.gain import Fewest


class Always:
    """Gains with which every layer pays from a number of samples on."""

    def __init__(self, fewest: int | None = 1) -> None:
        self.samples = fewest

    def fewest(self, inputs: int, outputs: int) -> Fewest:
        del inputs, outputs
        return Fewest(self.samples, "measured")


def decoded_product(left, right, scale, _, other_scale, __, *, bias, output_dtype, use_fast_accum):
    """Multiply as `scaled_mm` does, for a torch without it on a CPU."""
    del use_fast_accum
    product = (left.float() @ right.float()) * scale * other_scale
    return (product if bias is None else product + bias.float()).to(output_dtype)


@pytest.fixture
def units_on_a_cpu(monkeypatch):
    """Let layers on a CPU multiply natively; returns what sets the fewest samples that pay."""

    def pay_from(samples: int | None) -> None:
        monkeypatch.setattr(technique.Gains, "of", lambda device: Always(samples))

    for module in (native, technique):
        monkeypatch.setattr(module, "has_native", lambda device: device.type == "cpu")
    pay_from(1)
    try:
        factor, one = torch.zeros(16, 16).to(torch.float8_e4m3fn), torch.ones(16, 1)
        row, whole = native.ScalingType.RowWise, native.ScalingType.TensorWise
        native.scaled_mm(factor, factor.t(), one, row, one.t(), row)
        native.scaled_mm(factor, factor.t(), one[0, 0], whole, one[0, 0], whole)
    except (RuntimeError, NotImplementedError, ValueError):
        monkeypatch.setattr(native, "scaled_mm", decoded_product)
    return pay_from
