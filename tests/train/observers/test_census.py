"""Counting which format arithmetic runs in, against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from halfstep.engine import Engine
from halfstep.train.observers.census import Census


class WithoutAutocast(nn.Module):
    """A layer that knows better."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, inputs):
        with torch.autocast("cpu", enabled=False):
            return self.inner(inputs.float())


def count(model: nn.Module, recipe: str) -> Census:
    with Engine(model, torch.optim.SGD(model.parameters(), 0.1), recipe=recipe) as engine:
        inputs = torch.randn(4, 32)
        with Census(model, engine.resolution.layers) as census:
            with engine.autocast():
                loss = engine.model(inputs).float().square().mean()
            engine.grad(loss, list(model.parameters()))
    return census


# 2 * rows * in * out for each product; the first layer's input needs no gradient.
LINEAR = 2 * 4 * 32 * 32


@pytest.mark.parametrize(
    ("recipe", "format_"), [("fp32", "fp32"), ("tf32", "tf32"), ("fp16", "fp16"), ("half", "fp16")]
)
def test_products_of_both_passes_are_counted(recipe, format_) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    counted = count(model, recipe)
    assert counted.flops == {format_: 5 * LINEAR}
    assert counted.by_layer == {("0", format_): LINEAR, ("2", format_): LINEAR}
    assert counted.shares() == {format_: 1.0}
    assert counted.exceptions(format_) == {}


def test_fp8_tells_passes_apart_and_names_layers_that_it_cannot_take() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 10))
    counted = count(model, "fp8")
    small = 2 * 4 * 32 * 10
    assert counted.flops == {"fp8-e4m3": LINEAR, "fp8-e5m2": LINEAR, "bf16": 3 * small}
    found = counted.exceptions("fp8-e4m3")
    assert list(found) == ["1"]
    assert "not multiples of 16" in found["1"]


def test_a_layer_that_switches_autocast_off_shows() -> None:
    model = nn.Sequential(nn.Linear(32, 32), WithoutAutocast())
    counted = count(model, "bf16")
    assert counted.shares() == {"fp32": 0.6, "bf16": 0.4}
    assert counted.exceptions("bf16").keys() == {"1.inner"}
    assert "autocast is off" in counted.exceptions("bf16")["1.inner"]


def test_nothing_stays_behind() -> None:
    model = nn.Sequential(nn.Linear(32, 32))
    count(model, "fp32")
    assert not model._forward_hooks
    assert not model[0]._forward_pre_hooks
