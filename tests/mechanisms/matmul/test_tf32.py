"""TF32 rehearsed: inputs of a 10-bit mantissa, fp32 sums."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch

from halfstep.formats import round_to
from halfstep.mechanisms.matmul.tf32 import round_to_tf32, tf32_products


def rounded(value: torch.Tensor) -> torch.Tensor:
    return round_to(value, "tf32").double()


def test_rounding_is_that_of_round_to_at_every_tie_and_end() -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (200_000,), generator=generator, dtype=torch.int64)
    ties = (bits >> 13 << 13) + (1 << 12)
    found = torch.cat([bits, ties - 1, ties, ties + 1]).to(torch.int32).view(torch.float32)
    ends = torch.tensor([0.0, -0.0, 1e-45, 3.4028235e38, float("inf"), -float("inf")])
    value = torch.cat([found, ends])
    ours, expected = round_to_tf32(value), round_to(value, "tf32")
    assert torch.equal(ours.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    assert torch.equal(ours[numbers].view(torch.int32), expected[numbers].view(torch.int32))


def test_nan_stays_nan_whatever_its_mantissa() -> None:
    full = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
    assert round_to_tf32(full).isnan().all()


@pytest.mark.parametrize("strides", [(64, 64, 8, 1), (64, 1, 8, 1)])
def test_strides_of_dimensions_of_size_one_are_kept(strides) -> None:
    value = torch.empty_strided((2, 1, 8, 8), strides).normal_()
    assert round_to_tf32(value).stride() == strides


def test_linear_layers_round_factors_and_not_the_bias() -> None:
    torch.manual_seed(0)
    inputs, weight, bias = torch.randn(5, 40), torch.randn(7, 40), torch.full((7,), 1 + 2.0**-20)
    leaves = [inputs.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    with tf32_products("cpu"):
        result = F.linear(*leaves)
        cotangent = torch.randn_like(result)
        grads = torch.autograd.grad(result, leaves, cotangent)
    exact = rounded(inputs) @ rounded(weight).T + bias.double()
    expected = [
        rounded(cotangent) @ rounded(weight),
        rounded(cotangent).T @ rounded(inputs),
        cotangent.double().sum(0),
    ]
    for ours, right in zip((result, *grads), (exact, *expected), strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=1e-5, atol=1e-5)
    assert (result.double() - F.linear(*(leaf.double() for leaf in leaves))).abs().max() > 1e-4


def test_convolutions_round_factors_and_not_the_bias() -> None:
    torch.manual_seed(0)
    images, weight, bias = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    leaves = [each.requires_grad_() for each in (images, weight, bias)]
    with tf32_products("cpu"):
        result = F.conv2d(*leaves, padding=1)
        cotangent = torch.randn_like(result)
        grads = torch.autograd.grad(result, leaves, cotangent)
    wide = [rounded(leaf.detach()).requires_grad_() for leaf in leaves[:2]]
    exact = F.conv2d(*wide, bias.double(), padding=1)
    expected = torch.autograd.grad(exact, wide, rounded(cotangent))
    by_bias = cotangent.double().sum((0, 2, 3))
    for ours, right in zip((result, *grads), (exact, *expected, by_bias), strict=True):
        torch.testing.assert_close(ours.double(), right.detach(), rtol=1e-5, atol=2e-5)


def test_attention_rounds_its_inputs() -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(2, 2, 6, 8) for _ in range(3)]
    with tf32_products("cpu"):
        result = F.scaled_dot_product_attention(*leaves)
    exact = F.scaled_dot_product_attention(*map(rounded, leaves))
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)
    plain = F.scaled_dot_product_attention(*(leaf.double() for leaf in leaves))
    assert (result.double() - plain).abs().max() > 1e-5


@pytest.mark.parametrize("function", [torch.dot, torch.vdot])
def test_dot_products_have_no_tensor_cores(function) -> None:
    left, right = torch.full((1,), 1 + 2.0**-11), torch.ones(1)
    with tf32_products("cpu"):
        assert float(function(left, right)) == 1 + 2.0**-11
