"""Master weights: exact, owned by the optimizer, and what a checkpoint holds."""

from __future__ import annotations

import copy
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, AdamW

from halfstep.engine import Engine

assert_same = partial(torch.testing.assert_close, rtol=0, atol=0)
INPUTS = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def take_step(engine: Engine) -> None:
    engine.backward(engine.model(INPUTS).square().mean())
    assert engine.step().stepped


def test_masters_are_the_weights_before_they_were_rounded() -> None:
    model = net()
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="o2") as engine:
        held = engine.optimizer.param_groups[0]["params"]
        for master, param, original in zip(
            held, model.parameters(), net().parameters(), strict=True
        ):
            assert torch.equal(master, original)
            assert torch.equal(param.float(), original.to(param.dtype).float())
        # Norm layers are fp32 themselves and need no copy.
        assert held[2] is model[1].weight


@pytest.mark.parametrize("build", [partial(SGD, momentum=0.9), AdamW, partial(AdamW, fused=True)])
def test_the_optimizer_steps_as_it_would_alone_on_the_masters(build) -> None:
    model = net()
    mirror = [nn.Parameter(param.detach().clone()) for param in model.parameters()]
    optimizer = build(mirror, lr=1e-5)
    with Engine(
        model, build(model.parameters(), lr=1e-5), recipe={"base": "o2", "loss_scale": 1.0}
    ) as engine:
        for _ in range(4):
            engine.backward(engine.model(INPUTS).square().mean())
            for copy_, param in zip(mirror, model.parameters(), strict=True):
                copy_.grad = param.grad.float()
            optimizer.step()
            engine.step()
        masters = engine.optimizer.param_groups[0]["params"]
        for master, copy_, param in zip(masters, mirror, model.parameters(), strict=True):
            assert torch.equal(master, copy_)
            assert torch.equal(param, copy_.to(param.dtype))
            assert master.grad is None


def test_checkpoints_are_exact_and_load_into_masters() -> None:
    model = net()
    with Engine(model, SGD(model.parameters(), lr=1e-4), recipe="o2") as engine:
        take_step(engine)
        saved = copy.deepcopy(model.state_dict())
    plain = net()
    plain.load_state_dict(saved)
    other = net()
    with Engine(other, SGD(other.parameters(), lr=1e-4), recipe="o2") as engine:
        take_step(engine)
        take_step(engine)
        other.load_state_dict(saved)
        for name, value in other.state_dict().items():
            assert value.dtype == torch.float32
            assert torch.equal(value, saved[name])
            assert torch.equal(value, plain.state_dict()[name])
        assert torch.equal(other[0].weight, saved["0.weight"].half())


def test_part_of_a_larger_model_is_saved_and_loaded_with_its_masters() -> None:
    model = net()
    whole = nn.ModuleDict({"backbone": model})
    with Engine(model, SGD(model.parameters(), lr=1e-4), recipe="o2"):
        saved = copy.deepcopy(whole.state_dict())
        assert torch.equal(saved["backbone.0.weight"], net()[0].weight)
        saved["backbone.0.weight"] += 1e-5
        whole.load_state_dict(saved)
        assert torch.equal(whole.state_dict()["backbone.0.weight"], saved["backbone.0.weight"])


def test_a_deep_copy_runs_and_saves_its_own_weights() -> None:
    model = net()
    with Engine(model, SGD(model.parameters(), lr=0.5), recipe="o2") as engine:
        twin = copy.deepcopy(model)
        before = {name: value.clone() for name, value in twin.state_dict().items()}
        output = twin(INPUTS)
        take_step(engine)
        assert not torch.equal(model.state_dict()["0.weight"], before["0.weight"])
        assert torch.equal(twin(INPUTS), output)
        for name, value in twin.state_dict().items():
            assert value.dtype == torch.float32
            assert torch.equal(value, before[name])
            # Its own weights, which are rounded, not the masters of the original.
            assert torch.equal(value, dict(twin.named_parameters())[name].float())
        nn.init.zeros_(twin[0].weight)
        assert model[0].weight.any()


def test_state_made_before_moves_to_the_masters() -> None:
    model = net()
    optimizer = Adagrad(model.parameters(), lr=0.1)
    sums = [optimizer.state[param]["sum"] for param in model.parameters()]
    with Engine(model, optimizer, recipe="o2") as engine:
        take_step(engine)
        held = engine.optimizer.param_groups[0]["params"]
        assert {id(param) for param in optimizer.state} == {id(param) for param in held}
        assert [optimizer.state[p]["sum"].shape for p in held] == [s.shape for s in sums]


class WithConstants(nn.Sequential):
    """A frozen layer that no optimizer holds, a frozen one that one does, and a buffer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        self.register_buffer("mean", torch.full((6,), 0.1))
        self.register_buffer("scale", torch.full((6,), 0.2), persistent=False)
        self[0].requires_grad_(requires_grad=False)
        self[1].weight.requires_grad_(requires_grad=False)
        nn.init.constant_(self[0].bias, 0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward((inputs - self.mean) * self.scale)

    def held(self) -> list[nn.Parameter]:
        return [param for layer in (self[1], self[2], self[3]) for param in layer.parameters()]


# The loss scale that a recipe starts with overflows here.
MASTERED = [
    {"base": "o2", "loss_scale": 1024.0},
    {"params": "bf16", "norms": "fp32", "master_weights": True},
]


def constants(model: WithConstants) -> dict[str, torch.Tensor]:
    names = ["0.weight", "0.bias", "1.weight", "mean"]
    return {name: value.clone() for name, value in model.state_dict().items() if name in names}


@pytest.mark.parametrize("recipe", MASTERED)
def test_what_is_frozen_is_saved_and_given_back_exactly(recipe) -> None:
    model, original = WithConstants(), WithConstants()
    exact = constants(original)
    with Engine(model, SGD(model.held(), lr=0.1), recipe=recipe) as engine:
        take_step(engine)
        assert model[0].weight.dtype in (torch.float16, torch.bfloat16)
        assert_same(constants(model), exact)
        assert_same(model[0].state_dict()["weight"], exact["0.weight"])
    assert_same(constants(model), exact)
    assert torch.equal(model.scale, original.scale)
    assert not torch.equal(model[3].weight, original[3].weight)


@pytest.mark.parametrize("recipe", MASTERED)
def test_frozen_weights_that_are_loaded_or_written_replace_those_before(recipe) -> None:
    model = WithConstants()
    with Engine(model, SGD(model.held(), lr=0.1), recipe=recipe):
        loaded = {name: value + 0.1 for name, value in model.state_dict().items()}
        model.load_state_dict(loaded)
        assert_same(dict(model.state_dict()), loaded)
        with torch.no_grad():
            model[0].weight.fill_(0.3)
        written = model[0].weight.float()
        assert torch.equal(model.state_dict()["0.weight"], written)
    assert torch.equal(model[0].weight, written)
    # This one was as good as its rounded self before it was loaded.
    assert torch.equal(model[0].bias, loaded["0.bias"])


def test_a_frozen_weight_that_is_trained_later_starts_from_its_exact_value() -> None:
    model = WithConstants()
    with Engine(model, SGD(model.held(), lr=0.1), recipe=MASTERED[0]) as engine:
        take_step(engine)
        model[0].weight.requires_grad_(requires_grad=True)
        engine.optimizer.add_param_group({"params": [model[0].weight], "lr": 0.0})
        take_step(engine)
        master = engine.optimizer.param_groups[1]["params"][0]
        assert torch.equal(master, WithConstants()[0].weight)


def test_nothing_is_kept_beside_what_the_half_format_holds_exactly() -> None:
    model = WithConstants()
    model[0].half().float()
    storages = [param.untyped_storage() for param in model[0].parameters()]
    alive = [weakref.ref(storage) for storage in storages]
    del storages
    with Engine(model, SGD(model.held(), lr=0.1), recipe="o2"):
        assert all(ref() is None for ref in alive)
