"""Native FP8 products: their numbers, and which layers have them."""

from __future__ import annotations

import copy

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from halfstep import recipe
from halfstep.mechanisms.float8 import native, technique
from halfstep.mechanisms.float8.technique import Float8Layers
from halfstep.mechanisms.products.native import native_product

from .nets import engine_of, net, train

pytestmark = pytest.mark.usefixtures("units_on_a_cpu")

ROWWISE = recipe({"base": "fp8", "float8": "rowwise"})
E4M3, E5M2 = (ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e5m2, 57344.0)


def quantised(matrix: np.ndarray, format_, axis: int | None) -> np.ndarray:
    """Return the values of a matrix in FP8, in float64, with a scale for all or along an axis."""
    kind, top = format_
    wide = matrix.astype(np.float32)
    largest = np.abs(wide).max() if axis is None else np.abs(wide).max(axis, keepdims=True)
    scale = np.float32(top) / largest
    return (wide * scale).astype(kind).astype(np.float64) / scale


@pytest.mark.parametrize("samples", [48, 37])
@pytest.mark.parametrize("scaling", ["dynamic", "rowwise"])
def test_outputs_and_gradients_are_products_of_fp8_values(scaling, samples):
    torch.manual_seed(0)
    layer = nn.Linear(32, 64)
    value = (torch.randn(samples, 32) * torch.logspace(-2, 1, 32)).requires_grad_()
    cotangent = torch.randn(samples, 64) * torch.logspace(-3, 1, samples)[:, None]
    changed = Float8Layers(scaling)
    changed.prepare([layer], [])
    assert changed.layer_formats()[layer].how == "native"
    output = layer(value)
    ours = output, *torch.autograd.grad(output, [value, layer.weight, layer.bias], cotangent)
    rowwise = scaling == "rowwise"
    along = (lambda axis: axis) if rowwise else (lambda _: None)
    of_gradient = E4M3 if rowwise else E5M2
    x, w, g = (each.detach().numpy() for each in (value, layer.weight, cotangent))
    expected = (
        quantised(x, E4M3, along(1)) @ quantised(w, E4M3, along(1)).T
        + layer.bias.detach().double().numpy(),
        quantised(g, of_gradient, along(1)) @ quantised(w, E4M3, along(0)),
        quantised(g, of_gradient, along(0)).T @ quantised(x, E4M3, along(0)),
        g.sum(0, dtype=np.float64),
    )
    eps = 2.0**-7 if rowwise else 2.0**-20  # kernels with a scale for each row return bf16
    for result, right in zip(ours, expected, strict=True):
        np.testing.assert_allclose(
            result.detach().numpy(), right, rtol=eps, atol=eps / 16 * np.abs(right).max()
        )


@pytest.mark.parametrize("name", ["fp8", ROWWISE])
def test_native_layers_train_as_emulated_ones(name, units_on_a_cpu, monkeypatch):
    inputs = torch.randn(40, 32, generator=torch.Generator().manual_seed(1))
    with engine_of(net(), name) as engine:
        assert engine.resolution.in_layers().startswith("2 of 2 layers native in fp8-e4m3")
        (means,) = [part for part in engine.resolution.parts if part.field.startswith("float8")]
        assert means.how == "native"
        ours = [train(engine, inputs) for _ in range(4)]
    for module in (native, technique):
        monkeypatch.setattr(module, "has_native", lambda _: False)
    with engine_of(net(), name) as engine:
        assert "rehearsed" in engine.resolution.in_layers()
        theirs = [train(engine, inputs) for _ in range(4)]
    assert ours == pytest.approx(theirs, rel=2e-3)
    assert ours[-1] < ours[0]


def test_an_explicit_value_emulates_every_layer():
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(64, 16))
    for value in ("emulated", "delayed"):
        with engine_of(copy.deepcopy(model), {"base": "fp8", "float8": value}) as engine:
            assert engine.resolution.in_layers() == "2 of 2 layers rehearsed in fp8-e4m3"


def test_layers_without_a_native_product_are_told_one_by_one(units_on_a_cpu):
    class Own(nn.Linear):
        def forward(self, value):
            return super().forward(value) + 1

    layers = {
        "wide": nn.Conv2d(16, 16, 3),
        "strided": nn.Conv2d(16, 16, 1, stride=2),
        "grouped": nn.Conv2d(64, 64, 1, groups=2),
        "point": nn.Conv2d(16, 32, 1),
        "own": Own(16, 16),
        "linear": nn.Linear(16, 16),
        "odd": nn.Linear(16, 10),
    }
    with engine_of(nn.ModuleDict(layers)) as engine:
        found = {
            each.name: (each.how, each.format, each.reason) for each in engine.resolution.layers
        }
    native_ = ("native", "fp8-e4m3", "from 1 samples on (measured)")
    assert found["point"] == found["linear"] == native_
    others = "convolutions other than 1x1 have no native product"
    assert found["wide"] == found["grouped"] == ("left out", "bf16", others)
    assert found["strided"][2] == "1x1 convolutions with a stride or padding have no native product"
    assert found["own"][2] == "a forward of its own"
    assert found["odd"][2] == "widths not multiples of 16"
    units_on_a_cpu(None)
    with engine_of(nn.Sequential(nn.Linear(16, 16))) as engine:
        (layer,) = engine.resolution.layers
        assert layer.how == "left out"
        assert layer.reason == "slower in FP8 up to 131072 samples (measured)"


def test_a_1x1_convolution_of_channels_last_images_is_a_linear_layer():
    torch.manual_seed(0)
    point, linear = nn.Conv2d(16, 32, 1), nn.Linear(16, 32)
    linear.load_state_dict({"weight": point.weight.detach().flatten(1), "bias": point.bias})
    images = torch.randn(2, 16, 5, 4).to(memory_format=torch.channels_last)
    plain = point(images.contiguous()).detach()
    changed = Float8Layers("dynamic")
    changed.prepare([nn.ModuleList([point, linear])], [])
    ours, rows = point(images), linear(images.permute(0, 2, 3, 1))
    assert torch.equal(ours, rows.permute(0, 3, 1, 2))
    assert ours.is_contiguous(memory_format=torch.channels_last)
    ours.square().sum().backward()
    rows.square().sum().backward()
    assert torch.equal(point.weight.grad.flatten(1), linear.weight.grad)
    assert point.weight.grad.shape == point.weight.shape
    # Other images take the convolution's own forward.
    assert torch.equal(point(images.contiguous()), plain)
    assert torch.allclose(point(images[0].contiguous()), plain[0])
    changed.close()
    assert type(point) is nn.Conv2d


def test_too_few_samples_take_the_layer_s_own_forward(units_on_a_cpu):
    units_on_a_cpu(32)
    model = net()
    few, many = torch.randn(31, 32), torch.randn(32, 32)
    exact = model(few), model(many)
    changed = Float8Layers("dynamic")
    changed.prepare([model], [])
    assert torch.equal(model(few), exact[0])
    assert not torch.equal(model(many), exact[1])
    assert model(torch.randn(0, 32)).shape == (0, 16)


def test_the_host_reads_no_values():
    from torch._subclasses.fake_tensor import FakeTensorMode

    for scaling in ("dynamic", "rowwise"):
        product = native.NativeFloat8(scaling)
        with FakeTensorMode():  # raises where a value is read
            value = torch.randn(40, 32, requires_grad=True)
            weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((64, 32), (64,)))
            sides = product.cast(weight.detach(), "weight", rows=True, columns=True)
            for quantised_weight in (sides, (None, None)):
                output = native_product(value, weight, bias, product, quantised_weight)
                output.sum().backward()
            assert value.grad.shape == value.shape


def factors(inner: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(32, inner, generator=generator) * torch.logspace(-1, 1, inner)
    return value, torch.randn(64, inner, generator=generator)


@pytest.mark.parametrize("inner", [128, 1024])
def test_emulation_and_a_tensor_core_differ_by_the_bits_of_its_accumulator(inner, monkeypatch):
    """With fast accumulation a tensor core keeps 13 bits below the largest term of a sum.

    It truncates each group of 32 products and the running sum to them; otherwise the sum of every
    128 products is added in fp32.
    """
    mmaemu = pytest.importorskip("mmaemu")
    flags = []

    def tensor_core(left, right, scale, _, other, __, *, bias, output_dtype, use_fast_accum):
        assert bias is None
        flags.append(use_fast_accum)
        return mmaemu.scaled_mm(
            left, right, scale, other,
            out_dtype=output_dtype, use_fast_accum=use_fast_accum, splitk=1,
        )  # fmt: skip

    monkeypatch.setattr(native, "scaled_mm", tensor_core)
    value, weight = factors(inner)
    layers = [nn.Linear(inner, 64, bias=False) for _ in range(2)]
    inputs = [value.clone().requires_grad_() for _ in range(2)]
    results = []
    for layer, each, scaling in zip(layers, inputs, ("dynamic", "emulated"), strict=True):
        layer.weight.data.copy_(weight)
        changed = Float8Layers(scaling)
        changed.prepare([layer], [])
        output = layer(each)
        cotangent = torch.ones(32, 64) * torch.logspace(0, 1, 64)
        results.append([output, *torch.autograd.grad(output, [each, layer.weight], cotangent)])
    assert flags == [True, False, False]
    exact = [
        (value.abs() @ weight.abs().t(), inner / 32 + 1),
        (cotangent.abs() @ weight.abs(), 64 / 32 + 1),
        (cotangent.abs().t() @ value.abs(), 32 / 32 + 1),
    ]
    # What benchmarks/fp8_distance.py finds: at most 0.17 % with fast accumulation, else 0.02 %.
    for limit, ours, theirs in zip((2e-3, 3e-4, 3e-4), *results, strict=True):
        assert (ours - theirs).norm() < limit * theirs.norm()
    for ours, theirs, (magnitude, truncations) in zip(*results, exact, strict=True):
        bound = truncations * 2.0**-13 * magnitude * 1.1
        assert ((ours - theirs).abs() <= bound).all()
    assert not torch.equal(results[0][0], results[1][0])
    # Half of the bound of one truncation is far too little for the fast accumulation.
    assert ((results[0][0] - results[1][0]).abs() > 2.0**-22 * exact[0][0]).any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("scaling", ["dynamic", "rowwise"])
def test_a_gpu_and_the_emulation_differ_by_the_bits_of_its_accumulator(scaling):
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU")
    value, weight = (each.cuda().bfloat16() for each in factors(1024))
    product = native.NativeFloat8(scaling)
    rows, _ = product.cast(value, "input", rows=True)
    other, _ = product.cast(weight, "weight", rows=True)
    exact = (rows.values.double() * rows.decode) @ (other.values.double() * other.decode).t()
    magnitude = value.double().abs() @ weight.double().abs().t()
    for gradient in (False, True):
        found = product.multiply(rows, other, torch.bfloat16, gradient=gradient).double()
        bound = 33 * 2.0**-13 * 1.1 * magnitude + 2.0**-8 * exact.abs()
        assert ((found - exact).abs() <= bound).all()
