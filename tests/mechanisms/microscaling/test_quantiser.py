"""MXFP8 and MXFP4, bit for bit against torchao and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, unpack_uint4
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

from halfstep import Engine
from halfstep.mechanisms.microscaling.quantiser import Microscaling, quantised_blocks
from halfstep.mechanisms.products.blocks import Blocks

TORCHAO = {"fp8": torch.float8_e4m3fn, "fp4": torch.float4_e2m1fn_x2}
NUMPY = {"fp8": (ml_dtypes.float8_e4m3fn, 448.0), "fp4": (ml_dtypes.float4_e2m1fn, 6.0)}


def varied() -> torch.Tensor:
    torch.manual_seed(0)
    value = torch.randn(256, 128) * torch.exp(6 * torch.randn(256, 1))
    value[0, :32] = 0
    value[1] *= 1e-30
    value[2, 64:96] = torch.tensor([448.0, 6.0, 7.0, 5.0] * 8)
    value[3, 7] = torch.inf
    return value


def by_numpy(value: np.ndarray, elements: str) -> np.ndarray:
    """Quantise the rows of a matrix, and return the values in float64."""
    dtype, top = NUMPY[elements]
    result = value.astype(np.float64)
    for row in result:
        for start in range(0, len(row), 32):
            block = row[start : start + 32]
            largest = np.abs(block).max()
            scale = 2.0 ** max(np.ceil(np.log2(largest / top)), -127) if largest else 1.0
            narrow = np.clip(block / scale, -top, top).astype(np.float32).astype(dtype)
            row[start : start + 32] = narrow.astype(np.float64) * scale
    return result


@pytest.mark.parametrize("elements", ["fp8", "fp4"])
def test_elements_and_scales_are_those_of_torchao(elements) -> None:
    value = varied()
    scales, codes = to_mx(value, TORCHAO[elements], 32, ScaleCalculationMode.RCEIL)
    theirs = codes.float() if elements == "fp8" else f4_unpacked_to_f32(unpack_uint4(codes))
    blocks = Blocks.of(value, (1,), 32)
    ours = quantised_blocks(blocks, elements)
    exponents = scales.view(torch.uint8).to(torch.int32) - 127
    assert torch.equal(ours.exponents.squeeze(-1), exponents)
    assert torch.equal(blocks.joined(ours.elements), theirs)


@pytest.mark.parametrize("elements", ["fp8", "fp4"])
def test_values_are_those_of_ml_dtypes(elements) -> None:
    value = varied()[4:]
    ours = Microscaling(elements).quantised(value, "input", (1,)).widened()
    assert np.array_equal(ours.double().numpy(), by_numpy(value.numpy(), elements))


def test_a_block_with_nan_is_nan_and_others_are_not() -> None:
    value = torch.ones(2, 64)
    value[0, 3] = torch.nan
    wide = Microscaling("fp4").quantised(value, "gradient", (1,)).widened()
    assert wide.isnan().tolist() == [[True] * 32 + [False] * 32, [False] * 64]


@pytest.mark.parametrize(("name", "elements"), [("mxfp8", "fp8"), ("mxfp4", "fp4")])
def test_each_product_has_blocks_along_its_sum(name, elements) -> None:
    torch.manual_seed(0)
    layer, value = nn.Linear(64, 32, bias=False), torch.randn(3, 16, 64, requires_grad=True)
    cotangent = torch.randn(3, 16, 32)
    with Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.1), recipe=name) as engine:
        output = engine.model(value)
        grads = torch.autograd.grad(output, [value, layer.weight], cotangent)

    def rounded(matrix: torch.Tensor, axis: int) -> np.ndarray:
        array = matrix.detach().numpy()
        return by_numpy(array, elements) if axis == 1 else by_numpy(array.T, elements).T

    rows, columns = value.reshape(-1, 64), cotangent.reshape(-1, 32)
    expected = [
        rounded(rows, 1) @ rounded(layer.weight, 1).T,
        rounded(columns, 1) @ rounded(layer.weight, 0),
        rounded(columns, 0).T @ rounded(rows, 0),
    ]
    for ours, right in zip([output.detach(), *grads], expected, strict=True):
        matrix = ours.reshape(right.shape).numpy()
        np.testing.assert_allclose(matrix, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())
