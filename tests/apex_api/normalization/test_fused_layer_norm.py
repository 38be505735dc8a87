"""Norms with Apex's formats against float64."""

import pytest
import torch
from torch import nn

from halfstep.apex import normalization
from halfstep.apex.normalization import fused_layer_norm as functions
from halfstep.mechanisms.params.technique import is_norm

LAYERS = ["FusedLayerNorm", "MixedFusedLayerNorm", "FusedRMSNorm", "MixedFusedRMSNorm"]
HALVES = [torch.float16, torch.bfloat16]


def exact(layer, given):
    """Return what `layer` should give, in float64."""
    wide = given.double()
    dims = tuple(range(-len(layer.normalized_shape), 0))
    if "Layer" in type(layer).__name__:
        wide = wide - wide.mean(dims, keepdim=True)
    wide = wide / (wide.square().mean(dims, keepdim=True) + layer.eps).sqrt()
    wide = wide * layer.weight.double()
    return wide + layer.bias.double() if "Layer" in type(layer).__name__ else wide


def layer_and_input(name, shape=(6,)):
    torch.manual_seed(0)
    layer = getattr(normalization, name)(shape)
    for param in layer.parameters():
        nn.init.normal_(param)
    return layer, torch.randn(4, 3, *shape) * 3 + 1


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(6,), (2, 5)])
def test_layers_match_float64_gradients_too(name, shape):
    layer, given = layer_and_input(name, shape)
    given.requires_grad_()
    wide = given.detach().double().requires_grad_()
    torch.testing.assert_close(layer(given).double(), exact(layer, given), rtol=1e-5, atol=1e-5)
    layer(given).pow(3).sum().backward()
    exact(layer, wide).pow(3).sum().backward()
    torch.testing.assert_close(given.grad.double(), wide.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", HALVES)
def test_the_result_has_the_format_of_the_input_or_for_mixed_of_the_weight(name, dtype):
    layer, given = layer_and_input(name)
    half = given.to(dtype)
    result = layer(half)
    wanted = torch.float32 if name.startswith("Mixed") else dtype
    assert result.dtype == wanted
    # One rounding of the exact value: the arithmetic between is fp32.
    expected = exact(layer, half)
    eps = torch.finfo(wanted).eps
    error = (result.double() - expected).abs() / expected.abs().clamp(min=1e-2)
    assert error.max().item() <= max(eps, 1e-5)
    half_layer = getattr(normalization, name)(6).to(dtype)
    assert half_layer(half).dtype == dtype
    assert half_layer(given).dtype == (dtype if name.startswith("Mixed") else torch.float32)


@pytest.mark.parametrize("name", LAYERS)
def test_under_autocast_everything_is_cast_first(name):
    layer, given = layer_and_input(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(given).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["FusedLayerNorm", "FusedRMSNorm"])
def test_layers_without_weights(name):
    layer = getattr(normalization, name)(6, elementwise_affine=False)
    assert not list(layer.parameters())
    assert layer(torch.randn(2, 6).half()).dtype == torch.float16


@pytest.mark.parametrize("name", ["MixedFusedLayerNorm", "MixedFusedRMSNorm"])
def test_mixed_layers_always_have_weights(name):
    layer = getattr(normalization, name)
    with (
        pytest.warns(UserWarning, match="does not support `elementwise_affine` argument"),
        pytest.raises(RuntimeError, match=f"= False`; write {name.removeprefix('Mixed')}"),
    ):
        layer(6, elementwise_affine=False)
    with pytest.raises(TypeError, match="no argument 'affine'"):
        layer(6, affine=True)


def test_functions_have_apexs_default_epsilon():
    tiny = torch.full((1, 4), 1e-3) * torch.tensor([1.0, -1.0, 1.0, -1.0])
    weight, bias = torch.ones(4), torch.zeros(4)
    expected = (tiny / (1e-6 + 1e-6) ** 0.5).double()
    for result in (
        functions.fused_layer_norm(tiny, 4),
        functions.fused_layer_norm_affine(tiny, weight, bias, 4),
        functions.mixed_dtype_fused_layer_norm_affine(tiny, weight, bias, 4),
        functions.fused_rms_norm(tiny, 4),
        functions.fused_rms_norm_affine(tiny, weight, 4),
        functions.mixed_dtype_fused_rms_norm_affine(tiny, weight, 4),
        functions.manual_rms_norm(tiny, [4], None, 1e-6),
    ):
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-6)
    assert normalization.FusedLayerNorm(4).eps == normalization.FusedRMSNorm(4).eps == 1e-5


@pytest.mark.parametrize("name", LAYERS)
def test_recipes_know_the_layers_as_norms(name):
    assert is_norm(getattr(normalization, name)(4))


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_the_format_holds_where_the_norm_of_torch_returns_fp32(dtype, monkeypatch):
    """As under O1, which replaces it."""
    plain = nn.functional.layer_norm
    monkeypatch.setattr(
        nn.functional,
        "layer_norm",
        lambda given, shape, *rest: plain(given.float(), shape, *rest),
    )
    given = torch.randn(2, 6).to(dtype)
    layer = normalization.FusedLayerNorm(6, elementwise_affine=False)
    assert layer(given).dtype == dtype
