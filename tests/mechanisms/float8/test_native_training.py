"""Native FP8 in training: what is saved and cast, and beside other ways to train."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from halfstep import EMA, Engine, recipe
from halfstep.engine import shard
from halfstep.mechanisms.float8 import native
from halfstep.mechanisms.float8.technique import Float8Layers

from .nets import engine_of, net, train

pytestmark = pytest.mark.usefixtures("units_on_a_cpu")

ROWWISE = recipe({"base": "fp8", "float8": "rowwise"})


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
