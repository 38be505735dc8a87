"""Compressed activations: the same loss, gradients right on average, and nothing left behind."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from halfstep import Engine, recipe
from halfstep.engine import shard
from halfstep.recipe import RECIPES
from halfstep.techniques.activations.store import Kept, Saved, Whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.techniques.activations import CompressedActivations

ENOUGH = 4096
"""Elements from which a tensor is compressed."""


class Net(nn.Module):
    """What the technique treats in a way of its own, once each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.left = nn.Conv2d(8, 16, 3, padding=1)
        self.right = nn.Conv2d(8, 16, 1)
        self.rows = nn.LayerNorm(64)
        self.widen = nn.Linear(64, 64)
        self.head = nn.Linear(16 * 64, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = functional.relu(self.norm(self.stem(images)), inplace=True)
        features = functional.max_pool2d(features, 2)
        features = self.left(features) + self.right(features)
        rows = self.widen(self.rows(features.flatten(2)))
        return self.head(functional.gelu(rows).flatten(1))


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 3, 16, 16, generator=generator), torch.arange(16) % 5


def gradients(model: nn.Module, spec: Any, draws: int = 1) -> tuple[float, torch.Tensor]:
    """Return the loss and the gradients of all parameters, `[draws, parameters]`, without steps."""
    images, labels = batch()
    found = []
    with Engine(model, SGD(model.parameters(), lr=0.0), recipe=spec) as engine:
        for _ in range(draws):
            with engine.autocast():
                loss = cross_entropy(engine.model(images).float(), labels)
            engine.backward(loss)
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]).double())
            engine.step()
    return loss.item(), torch.stack(found)


def live() -> int:
    gc.collect()
    return sum(type(each) in (Kept, Saved, Whole) for each in gc.get_objects())


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return functional.cosine_similarity(one, other, dim=0).item()


@pytest.mark.parametrize(("bits", "nearest"), [(8, 0.9999), (4, 0.98), (3, 0.9), (2, 0.6)])
def test_the_loss_is_the_same_and_gradients_are_near(bits, nearest):
    loss, (exact,) = gradients(net(), "fp32")
    found, (rounded,) = gradients(net(), f"fp32+act{bits}")
    assert found == loss
    assert nearest < cosine(exact, rounded) < 1


def assert_right_on_average(bits: int, draws: int) -> None:
    """The mean of gradients lies within its standard error of the exact one.

    Norm layers and their statistics are left out: their gradient is a product of two rounded
    tensors, which is right on average up to one part in as many elements as they normalise over.
    """
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
        nn.GELU(), nn.Conv2d(16, 8, 3, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(512, 5),
    )  # fmt: skip
    _, (exact,) = gradients(model, "fp32")
    _, found = gradients(model, f"fp32+act{bits}", draws)
    noisy = found.std(0) > exact.abs().max() * 1e-6
    error = (found.mean(0) - exact)[noisy] / (found.std(0)[noisy] / draws**0.5)
    assert noisy.sum() > 1000
    assert 0.9 < error.square().mean().sqrt() < 1.1  # 1, where the error is chance alone
    assert error.abs().max() < 6


@pytest.mark.parametrize("bits", [2, 4])
def test_gradients_are_right_on_average(bits):
    torch.manual_seed(3)
    assert_right_on_average(bits, 100)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gradients_are_right_on_average_over_a_thousand_draws(bits):
    torch.manual_seed(3)
    assert_right_on_average(bits, 1000)


def test_dropout_keeps_its_mask():
    class Dropping(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return functional.dropout(values * 1.0, 0.3)

    values = torch.randn(8192, requires_grad=True)
    with using("act2"):
        result = Dropping()(values)
    result.backward(torch.ones_like(result))
    assert torch.equal(values.grad != 0, result != 0)
    assert torch.allclose(values.grad[values.grad != 0], torch.tensor(1 / 0.7))
    assert 0.6 < (result != 0).float().mean() < 0.8


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((2, 8, 17, 19), {"kernel_size": 3, "stride": 2, "padding": 1}),
        ((2, 8, 16, 16), {"kernel_size": 2}),
        ((2, 8, 16, 16), {"kernel_size": (3, 5), "stride": 2, "padding": (1, 2), "dilation": 2}),
        ((2, 8, 15, 15), {"kernel_size": 2, "ceil_mode": True}),
    ],
)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_max_pooling_keeps_where_the_largest_were(size, options, form):
    values = torch.randn(size).repeat(2, 2, 1, 1).contiguous(memory_format=form)
    given, expected = values.clone().requires_grad_(), values.clone().requires_grad_()
    with using("act2"):
        result = functional.max_pool2d(given * 1.0, **options)
    exact = functional.max_pool2d(expected, **options)
    assert torch.equal(result, exact)
    weights = torch.randn_like(exact)
    result.backward(weights)
    exact.backward(weights)
    assert torch.allclose(given.grad, expected.grad, atol=1e-6)


class using:  # noqa: N801  (a context, written as one)
    """Hold the technique of a recipe over a piece of code, without an engine."""

    def __init__(self, name: str) -> None:
        (self.technique,) = recipe(name).techniques(seed=7)
        self.technique.prepare([], [])

    def __enter__(self) -> CompressedActivations:
        self.context = self.technique.forward(torch.device("cpu"))
        self.context.__enter__()
        return self.technique

    def __exit__(self, *raised: object) -> None:
        self.context.__exit__(*raised)


def saved() -> list[Kept]:
    """Return what is kept now, of tensors that are large enough."""
    gc.collect()
    kept = {id(each.kept): each.kept for each in gc.get_objects() if type(each) is Saved}
    return list(kept.values())


def test_a_tensor_that_several_operators_save_is_kept_once_views_included():
    values = torch.randn(64, 128, requires_grad=True)
    weights = [torch.randn(16, 128, requires_grad=True) for _ in range(3)]
    with using("act4"):
        shared = values * 2.0
        results = [
            functional.linear(shared, weights[0]),
            functional.linear(shared.view(8, 8, 128), weights[1]),
            shared.t().t() @ weights[2].t(),
        ]
        (kept,) = saved()
    assert kept.packed.bits == 4
    sum(result.sum() for result in results).backward()
    assert torch.equal(weights[0].grad, weights[2].grad)
    assert torch.allclose(weights[0].grad, weights[1].grad, rtol=1e-4, atol=1e-4)


def test_a_tensor_that_one_operator_needs_whole_is_kept_whole_alone():
    values = torch.randn(64, 128, requires_grad=True)
    weight = torch.randn(16, 128, requires_grad=True)
    with using("act2"):
        shared = (values * 2.0).exp()
        result = functional.linear(shared, weight)
        (kept,) = saved()
        assert kept.packed is None
        before = values * 3.0
        other = functional.linear(before, weight)
        packed = next(each for each in saved() if each is not kept)
        assert packed.packed is not None
        power = before.pow(3)
        assert packed.packed is None
    (result.sum() + other.sum() + power.sum()).backward()
    exact = values.detach()
    expected = (exact * 2).exp().sum(0) + (exact * 3).sum(0)
    assert torch.allclose(weight.grad, expected.expand(16, -1), rtol=1e-4)


def test_memory_that_is_used_again_is_not_taken_for_what_lay_there_before():
    weight = torch.randn(16, 128, requires_grad=True)
    with using("act8"):
        for _ in range(20):
            values = torch.randn(64, 128)
            result = functional.linear(values * 1.0, weight)
            weight.grad = None
            result.sum().backward()
            assert torch.allclose(weight.grad[0], values.sum(0), atol=0.5)


def test_what_is_changed_in_place_is_not_taken_for_what_it_was():
    weight = torch.randn(16, 128, requires_grad=True)
    values = torch.randn(64, 128)
    with using("act8"):
        shared = values * 1.0
        one = functional.linear(shared, weight)
        shared.mul_(-10)
        two = functional.linear(shared, weight)
    one.sum().backward(retain_graph=True)
    assert torch.allclose(weight.grad[0], values.sum(0), atol=0.5)
    weight.grad = None
    two.sum().backward()
    assert torch.allclose(weight.grad[0], -10 * values.sum(0), atol=5)


def test_a_whole_tensor_that_is_changed_in_place_is_an_error_as_without():
    values = torch.randn(ENOUGH, requires_grad=True)
    with using("act4"):
        result = (values * 1.0).exp()
        result.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_parameters_casts_of_them_small_and_integer_tensors_stay_as_they_are():
    # The weight of the second layer is saved, in bf16, since a gradient goes on to the first.
    layers = (nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.Linear(128, 4))
    model = nn.Sequential(*layers)
    index = torch.randint(0, 16, (ENOUGH,))
    with using("act2"), torch.autocast("cpu", dtype=torch.bfloat16):
        result = model(torch.randn(64, 128)).sum() + model[0].weight.flatten()[index].sum()
        packed = [kept for kept in saved() if kept.packed is not None]
        assert sorted(kept.packed.elements for kept in packed) == [64 * 128] * 3
    result.backward()


def test_modules_keep_the_bits_that_they_are_named_with():
    model = nn.Sequential()
    for name in ("one", "two", "three"):
        model.add_module(name, nn.Sequential(nn.Linear(128, 128), nn.Tanh()))
    spec = {"base": "fp32", "activations": {"*": 2, "t*": 8, "three": "whole"}}
    values = torch.randn(64, 128)
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=spec) as engine:
        with engine.autocast():
            loss = engine.model(values).sum()
        bits = sorted(kept.packed.bits if kept.packed else 32 for kept in saved())
        assert bits == [2, 2, 8, 8, 32, 32]
        engine.backward(loss)
        engine.step()
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(ValueError, match="activations names 'four', which matches no module"):
        Engine(model, SGD(model.parameters(), lr=0.1), recipe={"activations": {"*": 2, "four": 4}})


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks_run_again_as_they_ran(reentrant):
    class Checkpointed(Net):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            features = functional.relu(self.norm(self.stem(images)))
            features = checkpoint(self.block, features, use_reentrant=reentrant)
            rows = self.widen(self.rows(features.flatten(2)))
            return self.head(functional.gelu(rows).flatten(1))

        def block(self, features: torch.Tensor) -> torch.Tensor:
            features = functional.max_pool2d(functional.relu(features), 2)
            return self.left(features) + self.right(features)

    torch.manual_seed(0)
    model = Checkpointed()
    loss, (exact,) = gradients(model, "fp32")
    found, (rounded,) = gradients(model, "fp32+act8")
    assert found == loss
    assert cosine(exact, rounded) > 0.9999


@pytest.fixture
def one_process() -> Iterator[None]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_gradients_are_near_in_several_processes(how):
    images, labels = batch()
    exact = gradients(net(), "fp32")[1][0]
    model = net()
    if how == "fsdp":
        model = shard(model, recipe("fp32+act8"))
    parallel = "ddp" if how == "ddp" else None
    optimizer = SGD(model.parameters(), lr=0.0)
    with Engine(model, optimizer, recipe="fp32+act8", parallel=parallel) as engine:
        with engine.autocast():
            loss = cross_entropy(engine.model(images), labels)
        kept = saved()
        assert {each.packed.bits for each in kept if each.packed} == {8}
        assert not any(each.whole for each in kept)  # no parameters, gathered or not
        engine.backward(loss)
        found = [
            getattr(p.grad, "full_tensor", lambda grad=p.grad: grad)() for p in model.parameters()
        ]
        engine.step()
    assert cosine(exact, torch.cat([each.flatten() for each in found]).double()) > 0.9999


def test_compiled_models_are_refused_whenever_they_were_compiled():
    for compiled_first in (True, False):
        model = nn.Sequential(nn.Linear(128, 128))
        if compiled_first:
            model.compile(backend="eager")
        with Engine(model, SGD(model.parameters(), lr=0.1), recipe="act4") as engine:
            model.compile(backend="eager")
            with pytest.raises(ValueError, match="this one is compiled"), engine.autocast():
                pass


def test_a_second_derivative_is_refused():
    model = net()
    images, labels = batch()
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="act4") as engine:
        with engine.autocast():
            loss = cross_entropy(engine.model(images), labels)
        with pytest.raises(RuntimeError, match="compressed activations have no second derivative"):
            engine.grad(loss, list(model.parameters()), create_graph=True)


@pytest.mark.parametrize("name", [name for name in RECIPES if not name.startswith("act")])
def test_it_composes_with_every_recipe(name):
    model = net()
    images, labels = batch()
    spec = recipe(f"{name}+act8")
    with Engine(model, SGD(model.parameters(), lr=0.05), recipe=spec) as engine:
        losses = []
        for _ in range(4):
            with engine.autocast():
                loss = cross_entropy(engine.model(images).float(), labels)
            assert any(kept.packed is not None for kept in saved())
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_the_same_seed_draws_the_same_and_a_resumed_engine_goes_on():
    def trained(steps: int, state: Any = None) -> tuple[list[float], Any]:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.05)
        images, labels = batch()
        losses = []
        with Engine(model, optimizer, recipe="fp32+act2") as engine:
            if state is not None:
                model.load_state_dict(state[0])
                engine.load_state_dict(state[1])
            for _ in range(steps):
                with engine.autocast():
                    loss = cross_entropy(engine.model(images), labels)
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
            kept = {key: value.clone() for key, value in model.state_dict().items()}
            return losses, (kept, engine.state_dict())

    whole, _ = trained(6)
    assert trained(6)[0] == whole
    first, state = trained(3)
    assert first + trained(3, state)[0] == whole


def test_no_fault_in_the_middle_leaves_anything_behind():
    model = net()
    images, labels = batch()
    with Engine(model, SGD(model.parameters(), lr=0.01), recipe="fp32+act4") as engine:

        def step(fault: str) -> None:
            if fault == "evaluation":
                with engine.evaluating():
                    engine.model(images)
                return
            with engine.autocast():
                loss = cross_entropy(engine.model(images), labels)
                if fault == "forward":
                    raise ArithmeticError(fault)
            if fault == "none":
                engine.backward(loss)
                with pytest.raises(RuntimeError, match="second time"):
                    loss.backward()
                engine.step()

        faults = ("forward", "no backward", "evaluation", "none")
        before = live()
        for index in range(100):
            with contextlib.suppress(ArithmeticError):
                step(faults[index % 4])
        assert live() == before
        ignore_is_tracing = True
        assert torch._C._autograd._top_saved_tensors_default_hooks(ignore_is_tracing) is None
        assert not torch.overrides._get_current_function_mode_stack()


def test_a_rectifier_in_place_changes_what_it_is_given():
    values = torch.randn(64, 128, requires_grad=True)
    with using("act4"):
        shared = values * 1.0
        result = shared.relu_()
    assert result is shared or torch.equal(result, shared)
    assert (shared >= 0).all()
    (result + shared).sum().backward()
    assert torch.equal(values.grad, 2.0 * (values > 0))


def test_recipes_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"activations is 'two'; allowed: 2, 3, 4, 8 or a mapping"):
        recipe({"activations": "two"})
    with pytest.raises(ValueError, match=r"keeps '\*' in 5 bits; allowed: 2, 3, 4, 8, 'whole'"):
        recipe({"activations": 5})
    with pytest.raises(ValueError, match="write activations=4, or leave activation_group out"):
        recipe({"activation_group": 64})
    assert str(recipe("fp16+act2")).endswith("activations 2 bits)")
    both = recipe({"activations": {"*": 2}}) + recipe({"activations": {"head": "whole"}})
    assert both.settings() == {"activations": {"*": 2, "head": "whole"}}
    assert recipe(both.settings()).parts == both.parts
    with pytest.raises(ValueError, match="disagree on activations"):
        recipe("act2+act4")


@pytest.mark.parametrize("sizes", [(8, 16), (32, 16)])
def test_a_norm_layer_of_the_wrong_size_is_the_error_of_torch(sizes):
    size, channels = sizes
    values = torch.randn(8, channels, 16, 16, requires_grad=True)
    with using("act4"), pytest.raises(RuntimeError, match=f"{channels} elements not {size}"):
        nn.BatchNorm2d(size)(values * 1.0)
    one = torch.randn(1, ENOUGH, requires_grad=True)
    with using("act4"), pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.BatchNorm1d(ENOUGH)(one * 1.0)


def relative_error(call: Any, values: torch.Tensor, name: str = "act8") -> float:
    """Return how far the gradient of `values` is from the exact one, over the size of that."""
    found = []
    for context in (contextlib.nullcontext(), using(name)):
        given = values.clone().requires_grad_()
        with context:
            result = call(given * 1.0)
        weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(3))
        result.backward(weights.to(result.dtype))
        found.append(given.grad.float())
    return ((found[1] - found[0]).norm() / found[0].norm()).item()


@pytest.mark.parametrize(
    ("call", "size"),
    [
        (lambda given: functional.layer_norm(given.t(), (32,), torch.ones(32)), (32, 8192)),
        (lambda q: functional.scaled_dot_product_attention(q, q, q), (4, 8, 256, 32)),
    ],
)
def test_statistics_of_rows_stay_as_they_are(call, size):
    values = torch.randn(size, requires_grad=True)
    with using("act2"):
        result = call(values * 1.0)
        packed = [kept.packed.elements for kept in saved() if kept.packed]
    assert packed
    assert all(elements == values.numel() for elements in packed)
    result.sum().backward()


@pytest.mark.parametrize(
    "call",
    [
        lambda given: functional.group_norm(given, 8),
        functional.instance_norm,
        lambda given: functional.rms_norm(given, (16,)),
    ],
)
def test_other_norms_keep_what_they_save(call):
    """Rows of very different size lie in one group of what they save."""
    scales = 10.0 ** (torch.arange(64) % 5 - 2).view(64, 1)
    values = torch.randn(32, 64, 16) * scales
    assert relative_error(call, values, "act2") == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_layer_norm_of_fp32_takes_half_values(dtype):
    layer = nn.LayerNorm(64)
    assert relative_error(layer, torch.randn(128, 64).to(dtype)) < 0.03


def test_a_bf16_batch_norm_of_a_large_mean_loses_nothing_more():
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(16).bfloat16()
    values = (torch.randn(8, 16, 16, 16) + 20).bfloat16()
    grads = []
    for context in (contextlib.nullcontext(), using("act8")):
        layer.zero_grad()
        with context:
            result = layer(values.clone().requires_grad_() * 1.0)
        weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(3))
        result.backward(weights.bfloat16())
        grads.append(layer.weight.grad.float())
    assert (grads[1] - grads[0]).norm() < 0.03 * grads[0].norm()


def test_frozen_parameters_stay_as_they_are():
    model = nn.Linear(128, 128).requires_grad_(requires_grad=False)
    with using("act2"):
        result = model(torch.randn(64, 128, requires_grad=True) * 1.0)
        assert not any(kept.packed for kept in saved())
    result.sum().backward()
