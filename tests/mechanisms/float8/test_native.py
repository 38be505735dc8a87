"""Native FP8 products: their numbers, what they save, how often they cast, what they leave."""

from __future__ import annotations

import copy

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from halfstep import EMA, Engine, recipe
from halfstep.engine import shard
from halfstep.mechanisms.float8 import native, technique
from halfstep.mechanisms.float8.technique import Float8Layers
from halfstep.mechanisms.products.native import native_product

pytestmark = pytest.mark.usefixtures("units_on_a_cpu")

ROWWISE = recipe({"base": "fp8", "float8": "rowwise"})
EMULATED = recipe({"base": "fp8", "float8": "emulated"})
E4M3, E5M2 = (ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e5m2, 57344.0)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))


def engine_of(model: nn.Module, name="fp8", lr: float = 0.1, **settings) -> Engine:
    return Engine(model, torch.optim.SGD(model.parameters(), lr), recipe=name, **settings)


def train(engine: Engine, inputs: torch.Tensor) -> float:
    with engine.autocast():
        loss = engine.model(inputs).float().square().mean()
    engine.backward(loss)
    engine.step()
    return loss.item()


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


@pytest.fixture
def cast_roles(monkeypatch):
    """Return the list of what is cast: each role with its sides, in the order of the casts."""
    made, original = [], native.NativeFloat8.cast

    def cast(self, matrix, role, **settings):
        sides = original(self, matrix, role, **settings)
        if any(sides):
            made.append((role, *(side is not None for side in sides)))
        return sides

    monkeypatch.setattr(native.NativeFloat8, "cast", cast)
    return made


def test_weights_are_cast_once_a_window_and_gradients_once_for_both_products(cast_roles):
    with engine_of(net(), accumulate=3) as engine:
        for _ in range(6):
            train(engine, torch.randn(16, 32))
        with torch.no_grad(), engine.evaluating(), engine.autocast():
            engine.model(torch.randn(16, 32))
    counted = {cast: cast_roles.count(cast) for cast in cast_roles}
    assert counted == {
        ("weight", True, True): 2 * 3,  # two windows, and one after the last step
        ("input", True, True): 2 * 6,
        ("input", True, False): 2,  # in evaluation
        ("gradient", True, True): 6,
        ("gradient", False, True): 6,  # the first layer's input needs no gradient
    }


def test_an_input_is_saved_once_and_in_fp8():
    layer, value = nn.Linear(32, 64), torch.randn(48, 32, requires_grad=True)
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.nbytes
        return tensor

    with engine_of(nn.Sequential(layer)) as engine:
        with engine.autocast(), torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
            output = engine.model(value)
        assert output.dtype == torch.bfloat16
        scales = 2 * 4
        assert sum(kept.values()) == 48 * 32 + 64 * 32 + scales


def test_a_step_moves_no_memory_that_a_replayed_graph_would_read():
    with engine_of(net()) as engine:
        layers = [layer for layer in engine.model if isinstance(layer, nn.Linear)]

        def addresses() -> list[int]:
            sides = [side for each in layers for side in each._computes.operands._sides]
            return [tensor.data_ptr() for side in sides for tensor in side]

        train(engine, torch.randn(16, 32))
        before = addresses()
        for _ in range(2):
            train(engine, torch.randn(16, 32))
        assert addresses() == before


def test_changes_of_a_weight_are_noticed_however_they_are_made():
    class Old(torch.optim.SGD):
        """Steps as optimizers before `no_grad` did: torch does not see the change."""

        def step(self, closure=None):
            for param in self.param_groups[0]["params"]:
                param.data.sub_(param.grad.data, alpha=0.1)

    def outputs(engine):
        with torch.no_grad(), engine.autocast():
            return engine.model(inputs)

    inputs, model = torch.randn(16, 32), net()
    optimizer = Old(model.parameters(), 0.1)
    with Engine(model, optimizer, recipe="fp8", average=EMA(0.5)) as engine:

        def is_fresh() -> bool:
            now = outputs(engine)
            for computes in (layer._computes for layer in model if hasattr(layer, "_computes")):
                computes.operands.forget()
            return torch.equal(now, outputs(engine))

        before = outputs(engine)
        train(engine, inputs)
        assert not torch.equal(outputs(engine), before)
        assert is_fresh()
        with engine.evaluating():
            average = outputs(engine)
            assert is_fresh()
        assert not torch.equal(outputs(engine), average)
        model.load_state_dict(net(1).state_dict())
        assert is_fresh()
        model[0].weight.data = torch.zeros(64, 32)
        assert is_fresh()
        with torch.no_grad():
            model[2].weight.mul_(2)
        # Outside of autocast too, where nothing casts the weights before the forward.
        once = model(inputs).detach()
        model[2]._computes.operands.forget()
        assert torch.equal(once, model(inputs))


def test_computed_weights_and_copies_of_a_layer_are_cast_where_they_are_used(monkeypatch):
    torch.manual_seed(0)
    normed = weight_norm(nn.Linear(32, 16))
    plain = nn.Linear(32, 16)
    plain.load_state_dict({"weight": normed.weight.detach(), "bias": normed.bias.detach()})
    inputs = torch.randn(16, 32)
    with engine_of(nn.ModuleList([normed, plain])) as engine:
        assert torch.equal(normed(inputs), plain(inputs))
        normed(inputs).sum().backward()
        assert normed.parametrizations.weight.original1.grad is not None
        operands = plain._computes.operands
        assert operands.of(plain.weight, torch.float32) == (None, None)  # in another dtype
        with engine.autocast(), monkeypatch.context() as compiling:
            assert operands.of(plain.weight, torch.bfloat16)[0] is not None
            compiling.setattr(torch.compiler, "is_compiling", lambda: True)
            assert operands.of(nn.Parameter(plain.weight.detach()), torch.bfloat16)[0] is None
        twin = copy.deepcopy(plain)
        with torch.no_grad():
            twin.weight.zero_()
        assert not (twin(inputs) - twin.bias).any()


def test_a_frozen_weight_saves_no_input(cast_roles):
    model = net()
    model[0].weight.requires_grad_(requires_grad=False)
    with engine_of(model) as engine:
        train(engine, torch.randn(16, 32))
    assert ("input", True, False) in cast_roles


def test_compiled_layers_have_no_graph_break_and_the_same_numbers(units_on_a_cpu):
    for name in ("fp8", ROWWISE):
        inputs = torch.randn(40, 32)
        results = []
        for compiled in (False, True):
            torch.compiler.reset()
            with engine_of(net(), name) as engine:
                if compiled:
                    engine.model.compile(backend="aot_eager", fullgraph=True)
                before = counters["stats"]["unique_graphs"]
                results.append([train(engine, inputs) for _ in range(4)])
                # Not again for the weights of each step.
                assert counters["stats"]["unique_graphs"] - before == int(compiled)
        assert results[0] == results[1]


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


@pytest.mark.parametrize("at_hand", [True, False])
def test_a_second_derivative_is_refused_in_words(at_hand):
    layer, value = nn.Linear(32, 16), torch.randn(16, 32, requires_grad=True)
    with engine_of(nn.Sequential(layer)) as engine:
        if at_hand:
            with engine.autocast():
                pass
        loss = engine.model(value).square().sum()
        (grad,) = torch.autograd.grad(loss, value, create_graph=True)
        with pytest.raises(RuntimeError, match=r"cannot be differentiated again.*recipe='bf16'"):
            grad.square().sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_compute_the_same(reentrant):
    inputs = torch.randn(16, 32, requires_grad=True)

    def gradients(run) -> list[torch.Tensor]:
        model = net()
        with engine_of(model, lr=0.0) as engine:
            with engine.autocast():
                loss = run(model).float().square().sum()
            engine.backward(loss)
            return [param.grad.clone() for param in model.parameters()]

    plain = gradients(lambda model: model(inputs))
    again = gradients(lambda model: checkpoint(model, inputs, use_reentrant=reentrant))
    assert all(map(torch.equal, plain, again))


def test_after_an_error_steps_are_as_without_it():
    batches = [torch.randn(16, 32) for _ in range(3)]
    results = []
    for fails in (False, True):
        with engine_of(net()) as engine:
            train(engine, batches[0])
            if fails:
                with pytest.raises((RuntimeError, ValueError)), engine.autocast():
                    engine.model(torch.randn(16, 33))
                with pytest.raises(ZeroDivisionError), engine.autocast():
                    _ = engine.model(batches[1]) / (1 / 0)
            results.append([train(engine, batch) for batch in batches])
    assert results[0] == results[1]


@pytest.fixture
def one_process():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_several_processes_train_as_one(how):
    inputs = torch.randn(16, 32)
    with engine_of(net()) as engine:
        expected = [train(engine, inputs) for _ in range(3)]
    model = net()
    if how == "fsdp":
        model = shard(model, recipe("fp8"))
    with engine_of(model, parallel="ddp" if how == "ddp" else None) as engine:
        assert "2 of 2 layers native" in engine.resolution.in_layers()
        assert [train(engine, inputs) for _ in range(3)] == pytest.approx(expected, rel=1e-3)


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_replayed_graph_computes_with_the_weights_of_the_moment():
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU")
    torch.manual_seed(0)
    layer, value = nn.Linear(64, 32).cuda(), torch.randn(32, 64, device="cuda")
    changed = Float8Layers("dynamic", dtype=torch.bfloat16)
    changed.prepare([layer], [])

    def output() -> torch.Tensor:
        with changed.forward(value.device), torch.autocast("cuda", torch.bfloat16):
            return layer(value)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            output().sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    layer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = output()
        replayed.sum().backward()
    for factor in (2.0, 0.5, 3.0):
        with torch.no_grad():
            layer.weight.mul_(factor)
            graph.replay()
            assert torch.equal(replayed, output())
