"""FP8 products against ml_dtypes' casts and float64 sums."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.formats import round_to
from halfstep.mechanisms.float8.quantiser import FORMAT_OF, Float8, RowwiseFloat8
from halfstep.mechanisms.float8.scales import DynamicScales
from halfstep.mechanisms.products.product import Geometry, product

NUMPY = {
    "input": (ml_dtypes.float8_e4m3fn, 448.0),
    "weight": (ml_dtypes.float8_e4m3fn, 448.0),
    "gradient": (ml_dtypes.float8_e5m2, 57344.0),
}


OWN = Float8(DynamicScales())
"""Scales each tensor by its own largest value."""


class Given:
    """A scale that does not fit the tensor."""

    def __init__(self, largest):
        self._largest = torch.tensor(largest)

    def largest(self, role, value, *, training):
        return self._largest


def quantised(value: torch.Tensor, role: str, quantiser: Float8):
    return quantiser.quantised(value, role, tuple(range(value.dim())))


def in_fp8(value: torch.Tensor, role: str) -> torch.Tensor:
    """What `value` is after FP8 by its own scale, in float64."""
    dtype, top = NUMPY[role]
    value = value.detach().float()
    scale = np.float32(top) / np.float32(value.abs().max())
    scaled = value.numpy() * scale
    return torch.from_numpy(scaled.astype(dtype).astype(np.float64) / np.float64(scale))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_linear_layers_and_their_gradients(dtype, scale) -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(6, 3, 32) * scale, torch.randn(16, 32), torch.randn(16) * scale]
    leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    result = product(*leaves, OWN)
    cotangent = torch.randn_like(result) / 1000
    grads = torch.autograd.grad(result, leaves, cotangent)

    inputs, weight = in_fp8(leaves[0], "input"), in_fp8(leaves[1], "weight")
    incoming = in_fp8(cotangent, "gradient")
    expected = [
        inputs @ weight.T + leaves[2].double(),
        incoming @ weight,
        incoming.flatten(0, 1).T @ inputs.flatten(0, 1),
        cotangent.double().sum((0, 1)),
    ]
    eps = torch.finfo(dtype).eps
    for ours, right in zip((result, *grads), expected, strict=True):
        assert ours.dtype == dtype
        bound = float(right.detach().abs().max())
        torch.testing.assert_close(
            ours.double(), right.detach(), rtol=eps, atol=max(eps, 1e-5) * bound
        )


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_and_their_gradients(groups) -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(2, 4, 9, 9), torch.randn(6, 4 // groups, 3, 3), torch.randn(6)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    options = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": groups}
    result = product(*leaves, OWN, Geometry(**options))
    cotangent = torch.randn_like(result)
    grads = torch.autograd.grad(result, leaves, cotangent)

    wide = [in_fp8(leaves[0], "input"), in_fp8(leaves[1], "weight"), leaves[2].detach().double()]
    wide = [leaf.requires_grad_() for leaf in wide]
    exact = F.conv2d(*wide, **options)
    by_weights = torch.autograd.grad(exact, wide[:2], in_fp8(cotangent, "gradient"))
    expected = (exact.detach(), *by_weights, cotangent.double().sum((0, 2, 3)))
    for ours, right in zip((result, *grads), expected, strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=1e-5, atol=1e-5)


class Products(TorchDispatchMode):
    """Counts matrix products and what a backward of convolutions was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices, self.masks = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.matrices += 1
        if func is torch.ops.aten.convolution_backward.default:
            self.masks.append(list(args[-1]))
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True), (False, False)])
def test_only_the_gradients_that_are_wanted_are_computed(wanted) -> None:
    bias = torch.zeros(16, requires_grad=True)
    value, weight = torch.randn(4, 32), torch.randn(16, 32)
    images, kernels = torch.randn(2, 16, 4, 4), torch.randn(16, 16, 3, 3)
    for leaf, needs in zip((value, weight, images, kernels), wanted * 2, strict=True):
        leaf.requires_grad_(needs)
    linear = product(value, weight, bias, OWN)
    geometry = Geometry((1, 1), (0, 0), (1, 1), 1)
    convolved = product(images, kernels, bias, OWN, geometry)
    with Products() as products:
        (linear.sum() + convolved.sum()).backward()
    assert products.matrices == sum(wanted)
    assert products.masks == ([[*wanted, False]] if any(wanted) else [])
    for leaf, needs in zip((value, weight, images, kernels), wanted * 2, strict=True):
        assert (leaf.grad is not None) is needs


@pytest.mark.parametrize("of", ["input", "weight"])
def test_gradients_that_are_differentiated_again_are_refused(of) -> None:
    leaves = {"input": torch.randn(4, 32), "weight": torch.randn(16, 32)}
    leaf = leaves[of].requires_grad_()
    result = product(leaves["input"], leaves["weight"], None, OWN)
    (plain,) = torch.autograd.grad(result.sum(), leaf, retain_graph=True)
    (grad,) = torch.autograd.grad(result.sum(), leaf, create_graph=True)
    assert torch.equal(grad, plain)
    with pytest.raises(RuntimeError, match=r"cannot be differentiated again.*recipe='bf16'"):
        grad.square().sum().backward()


def test_what_lies_beyond_a_scale_saturates() -> None:
    values = torch.tensor([1.0, -3.0, float("inf")])
    rounded = quantised(values, "input", Float8(Given(1.0))).widened()
    assert rounded.tolist() == [448, -448, 448]


@pytest.mark.parametrize("role", ["input", "gradient"])
def test_every_bf16_value_is_rounded_as_by_round_to_that_saturates(role) -> None:
    values = torch.arange(1 << 16).to(torch.int16).view(torch.bfloat16)
    ours = quantised(values, role, Float8(Given(NUMPY[role][1])))
    assert ours.scale == 1
    expected = round_to(values.float(), FORMAT_OF[role], overflow="saturate").to(ours.values.dtype)
    assert torch.equal(ours.values.view(torch.uint8), expected.view(torch.uint8))


def test_nan_and_an_inf_that_decides_its_scale_do_not_hide() -> None:
    assert quantised(torch.tensor([1.0, float("nan")]), "input", OWN).widened().isnan().any()
    assert quantised(torch.tensor([1.0, float("inf")]), "weight", OWN).widened().isnan().any()


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38])
def test_zeros_and_subnormals_have_a_finite_scale(value) -> None:
    result = quantised(torch.full((3,), value), "gradient", OWN)
    assert result.scale.isfinite()
    assert result.widened().isfinite().all()


def test_factors_are_kept_in_fp8() -> None:
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.dtype) or t, lambda t: t):
        product(torch.randn(4, 32), torch.randn(16, 32, requires_grad=True), None, OWN)
    assert kept.count(torch.float8_e4m3fn) == 2
    assert all(dtype in (torch.float8_e4m3fn, torch.float32) for dtype in kept)


@pytest.mark.parametrize(("shape", "axis"), [((12, 32), (1,)), ((12, 32), (0,)), ((2, 8, 3), (1,))])
def test_rows_have_scales_of_their_own(shape, axis):
    torch.manual_seed(0)
    value = torch.randn(shape) * torch.logspace(-4, 4, shape[0]).view(-1, *[1] * (len(shape) - 1))
    found = RowwiseFloat8().quantised(value, "gradient", axis)
    wide = value.numpy()
    scale = np.float32(448) / np.abs(wide).max(axis[0], keepdims=True)
    expected = (wide * scale).astype(ml_dtypes.float8_e4m3fn)
    assert found.values.dtype == torch.float8_e4m3fn
    np.testing.assert_array_equal(found.values.float().numpy(), expected.astype(np.float32))
    np.testing.assert_allclose(found.blocks.numpy(), 1 / scale, rtol=1e-6)
    assert found.scale == 1
    assert RowwiseFloat8().quantised(torch.zeros(0, 32), "input", (1,)).values.shape == (0, 32)
