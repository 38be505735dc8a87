"""NVFP4 against torchao, ml_dtypes and exact products; its rounding and transform are unbiased."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, unpack_uint4
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

from halfstep import Engine, recipe
from halfstep.mechanisms.nvfp4.quantiser import (
    SIZE,
    Nvfp4,
    hadamard,
    quantised_blocks,
    transformed,
)
from halfstep.mechanisms.products.blocks import Blocks

SIGNS = torch.tensor([1.0, -1.0] * 4 + [-1.0, -1.0, 1.0, 1.0] * 2)


def quantiser(*, published: bool, seed: int = 0) -> Nvfp4:
    made = torch.Generator().manual_seed(seed)
    return Nvfp4(published=published, generator=lambda device: made, signs=SIGNS)


def test_elements_and_scales_are_those_of_torchao() -> None:
    torch.manual_seed(0)
    value = torch.randn(256, 128) * torch.exp(2 * torch.randn(256, 1))
    value[0, :32] = 0
    value[1] *= 1e-6
    scales, codes = nvfp4_quantize(value, 16, per_tensor_amax_to_scale(value.abs().max()))
    blocks = Blocks.of(value, (1,), SIZE)
    ours = quantised_blocks(blocks.values, blocks.largest())
    assert torch.equal(ours.scales.squeeze(-1), scales.float())
    theirs = f4_unpacked_to_f32(unpack_uint4(codes))
    assert torch.equal(blocks.joined(ours.elements), theirs)


def test_a_weight_has_square_blocks_and_is_the_same_in_both_passes() -> None:
    torch.manual_seed(0)
    weight = torch.randn(32, 48) * torch.exp(torch.randn(32, 48))
    ours = quantiser(published=True).quantised(weight, "weight", (1,))
    again = quantiser(published=True).quantised(weight, "weight", (0,))
    assert torch.equal(ours.values, again.values)
    largest = weight.abs().max().item()
    top = np.float32(largest) / np.float32(448 * 6)
    expected = np.empty((32, 48))
    for row in range(0, 32, 16):
        for column in range(0, 48, 16):
            block = weight[row : row + 16, column : column + 16].numpy()
            wanted = np.abs(block).max() / np.float32(6) / top
            scale = np.float32(wanted.astype(ml_dtypes.float8_e4m3fn))
            scaled = np.clip(block * ((np.float32(1) / top) / scale), -6, 6)
            narrow = scaled.astype(ml_dtypes.float4_e2m1fn).astype(np.float64)
            expected[row : row + 16, column : column + 16] = narrow * scale
    assert np.array_equal(ours.widened().double().numpy(), expected)


def test_gradients_are_rounded_to_a_neighbour_and_right_on_average() -> None:
    torch.manual_seed(0)
    value = torch.randn(16, 32)
    made = quantiser(published=True)
    draws = [made.quantised(value, "gradient", (1,)) for _ in range(1000)]
    wide = torch.stack([each.widened() / each.scale for each in draws]).double()
    nearest = quantiser(published=False).quantised(value, "gradient", (1,))
    scales = Blocks.of(value, (1,), SIZE).largest() / 6
    spacing = (2 * scales * 1.1).expand(-1, -1, SIZE).reshape(value.shape)
    assert ((wide - value).abs() <= spacing).all()
    assert (wide.amax(0) != wide.amin(0)).float().mean() > 0.8
    error = (wide.mean(0) - value).abs()
    deviation = wide.std(0) / 1000**0.5
    # Elements that the rounded scale of their block would make larger than 6 saturate.
    fits = (value * nearest.scale).abs() <= 6 * nearest.values.abs().amax().float()
    inside = fits & (value.abs() < 0.9 * scales.expand(-1, -1, SIZE).reshape(value.shape) * 6)
    assert (error <= 5 * deviation + 1e-6)[inside].all()
    biased = (nearest.widened() / nearest.scale - value).abs()
    assert (biased > 5 * deviation)[inside].float().mean() > 0.5


def test_the_transform_keeps_the_product_over_samples() -> None:
    torch.manual_seed(0)
    matrix = hadamard() * SIGNS
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(SIZE))
    left, right = torch.randn(3, 7, 20), torch.randn(3, 7, 12)
    rows = [transformed(each, matrix) for each in (left, right)]
    assert [len(each) for each in rows] == [32, 32]
    expected = left.reshape(-1, 20).T @ right.reshape(-1, 12)
    torch.testing.assert_close(rows[0].T @ rows[1], expected, rtol=1e-5, atol=1e-5)
    outlier = torch.zeros(16, 1)
    outlier[5] = 16.0
    assert transformed(outlier, matrix).abs().unique().tolist() == [4.0]


def test_weight_gradients_are_right_on_average_and_inputs_gradients_too() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(32, 32, bias=False) for _ in range(3)]
    model = nn.Sequential(*layers)
    value, cotangent = torch.randn(40, 32), torch.randn(40, 32)
    middle = layers[1]
    with Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe="nvfp4") as engine:
        assert "2 of 3 layers in bf16: first and last layer" in engine.resolution.in_layers()
        inputs = value.clone().requires_grad_()
        found = [
            torch.autograd.grad(middle(inputs), [inputs, middle.weight], cotangent)
            for _ in range(300)
        ]
        quantised = engine.techniques[-2]._quantiser
        weight = quantised.quantised(middle.weight, "weight", (0,))
    by_input = torch.stack([grads[0] for grads in found]).double().mean(0)
    exact = (cotangent @ (weight.widened() / weight.scale)).double()
    assert (by_input - exact).norm() / exact.norm() < 0.02
    by_weight = torch.stack([grads[1] for grads in found]).double().mean(0)
    exact = (cotangent.T @ value).double()
    error = float((by_weight - exact).norm() / exact.norm())
    assert error < 0.1  # what remains is that of the inputs, which are rounded to nearest
    single = float((found[0][1] - exact).norm() / exact.norm())
    assert error < 0.75 * single


@pytest.mark.parametrize("how", ["published", "nearest"])
def test_a_resumed_engine_draws_what_the_first_one_would_have(how) -> None:
    own = recipe({"base": "nvfp4", "nvfp4": how})

    def started() -> Engine:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))
        return Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe=own, seed=3)

    def step(engine: Engine) -> None:
        with engine.autocast():
            loss = engine.model(torch.ones(4, 32)).float().square().mean()
        engine.backward(loss)
        engine.step()

    first = started()
    step(first)
    state, weights = first.state_dict(), first.bare_model.state_dict()
    weights = {name: value.clone() for name, value in weights.items()}
    second = started()
    second.bare_model.load_state_dict(weights)
    second.load_state_dict(state)
    step(first)
    step(second)
    for ours, theirs in zip(
        first.bare_model.parameters(), second.bare_model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_convolutions_train_in_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(256, 4)
    )
    images, labels = torch.randn(16, 1, 8, 8), torch.arange(16) % 4
    losses = []
    with Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe="nvfp4") as engine:
        assert "1 rehearsed in nvfp4" in engine.resolution.in_layers()
        for _ in range(30):
            with engine.autocast():
                loss = nn.functional.cross_entropy(engine.model(images).float(), labels)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
