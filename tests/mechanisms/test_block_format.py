"""The seam of product formats: a block format is one folder (`block8`) and one row of the table."""

from __future__ import annotations

import importlib
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from halfstep import Engine
from halfstep.recipe import PARTS, RECIPES, Recipe, recipe
from halfstep.train.observers.census import Census
from mechanisms.block8 import technique


@pytest.fixture(autouse=True)
def _block8():
    sys.modules.pop("mechanisms.block8.field", None)
    importlib.import_module("mechanisms.block8.field")
    row = Recipe("block8", params="fp32", autocast="bf16", block8="rounded")
    RECIPES["block8"] = row, "products of blocks"
    yield
    del RECIPES["block8"], PARTS["block8"]


@pytest.fixture
def _units(monkeypatch):
    monkeypatch.setattr(technique, "DEVICES_WITH_UNITS", {"cpu"})


def rounded(matrix: np.ndarray, axis: int) -> np.ndarray:
    """Quantise a matrix along an axis, block by block, and return its values in float64."""
    result = np.moveaxis(matrix.astype(np.float64), axis, -1).copy()
    for row in result:
        for start in range(0, len(row), 4):
            block = row[start : start + 4]
            scale = 2.0 ** (np.floor(np.log2(np.abs(block).max())) - 8)
            narrow = np.clip(block / scale, -448, 448).astype(np.float32)
            row[start : start + 4] = narrow.astype(ml_dtypes.float8_e4m3fn).astype(float) * scale
    return np.moveaxis(result, -1, axis)


def engine_of(model: nn.Module, name: str = "block8") -> Engine:
    return Engine(model, torch.optim.SGD(model.parameters(), lr=0.0), recipe=name)


def outputs_and_gradients(name: str):
    torch.manual_seed(0)
    layer = nn.Linear(12, 8, bias=False)
    value = (torch.randn(10, 12) * torch.logspace(-2, 2, 12)).requires_grad_()
    cotangent = torch.randn(10, 8) * torch.logspace(-3, 1, 10)[:, None]
    with engine_of(layer, name) as engine:
        output = engine.model(value)  # outside of autocast: fp32 operands
        grads = torch.autograd.grad(output, [value, layer.weight], cotangent)
    arrays = [tensor.detach().numpy() for tensor in (value, layer.weight, cotangent)]
    return [output.detach(), *grads], arrays


@pytest.mark.parametrize("units", [False, True])
def test_each_product_quantises_along_the_axis_that_it_sums_over(units, monkeypatch) -> None:
    monkeypatch.setattr(technique, "DEVICES_WITH_UNITS", {"cpu"} if units else set())
    monkeypatch.setattr(technique.hardware, "calls", 0)
    ours, (value, weight, cotangent) = outputs_and_gradients("block8")
    expected = [
        rounded(value, 1) @ rounded(weight, 1).T,
        rounded(cotangent, 1) @ rounded(weight, 0),
        rounded(cotangent, 0).T @ rounded(value, 0),
    ]
    for result, right in zip(ours, expected, strict=True):
        bound = np.abs(right).max()
        np.testing.assert_allclose(result.numpy(), right, rtol=1e-5, atol=1e-6 * bound)
    # The other axis would give other numbers.
    assert np.abs(rounded(weight, 0) - rounded(weight, 1)).max() > 1e-4
    assert technique.hardware.calls == (3 if units else 0)


def test_convolutions_quantise_along_channels_and_samples() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 4, 1, bias=False)
    images = torch.randn(2, 8, 3, 3)
    with engine_of(layer) as engine:
        output = engine.model(images)
        (grad,) = torch.autograd.grad(output.square().sum(), layer.weight)
    pixels = images.permute(0, 2, 3, 1).reshape(-1, 8).numpy()
    weight = layer.weight.detach().numpy()[:, :, 0, 0]
    expected = rounded(pixels, 1) @ rounded(weight, 1).T
    cotangent = 2 * output.detach().permute(0, 2, 3, 1).reshape(-1, 4).numpy()
    by_weight = rounded(cotangent, 0).T @ rounded(pixels, 0)
    np.testing.assert_allclose(grad[:, :, 0, 0].numpy(), by_weight, rtol=1e-4, atol=1e-4)
    ours = output.detach().permute(0, 2, 3, 1).reshape(-1, 4).numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_units")
def test_the_device_is_asked_layer_by_layer() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2))
    with engine_of(model) as engine:
        assert engine.resolution.in_layers() == (
            "1 of 3 layers rehearsed in block8, 1 native in block8, "
            "1 in bf16: widths not multiples of 4"
        )
        assert engine.resolution.in_layers() in str(engine.resolution)
        with Census(model, engine.resolution.layers) as census, engine.autocast():
            engine.model(torch.randn(2, 4, 2, 2))
        assert census.exceptions("block8") == {"3": "bf16: widths not multiples of 4"}
    assert recipe("block8").resolve("cpu").layers == ()
    own = recipe({"base": "block8", "exceptions": {"2": "fp32"}})
    with engine_of(model, own) as engine:
        assert "1 in fp32: exceptions of the recipe" in engine.resolution.in_layers()


def test_it_trains_and_gives_the_model_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    inputs = torch.randn(32, 8)
    labels = inputs[:, :4].argmax(1)
    losses = []
    with Engine(model, torch.optim.SGD(model.parameters(), lr=0.5), recipe="block8") as engine:
        for _ in range(30):
            with engine.autocast():
                loss = nn.functional.cross_entropy(engine.model(inputs).float(), labels)
            engine.backward(loss)  # no warning: the product counts as one in bf16's autocast
            engine.step()
            losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU, nn.Linear]
