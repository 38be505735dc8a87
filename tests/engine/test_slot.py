"""Parameters of all kinds: tied, frozen, in groups, added later; and the guard of fused SGD."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD

from halfstep.engine import Engine, EngineWarning
from halfstep.engine.slot import start_momentum

from .tiny import differences, mlp, relative_error

RECIPES = ["fp32", "fp16", "o2", "half-bn32", "bf16-sr", "bf16-kahan"]
INPUTS = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


def by_optimizer(engine: Engine) -> None:
    engine.optimizer.zero_grad()


def by_optimizer_to_zeros(engine: Engine) -> None:
    engine.optimizer.zero_grad(set_to_none=False)


def by_model(engine: Engine) -> None:
    engine.model.zero_grad()


def by_model_to_zeros(engine: Engine) -> None:
    engine.model.zero_grad(set_to_none=False)


def by_hand(engine: Engine) -> None:
    for param in engine.model.parameters():
        param.grad = None


class Tied(nn.Module):
    """Encodes and decodes with one matrix, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encode = nn.Linear(6, 6, bias=False)
        self.decode = nn.Linear(6, 6, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(inputs).tanh())


def take_step(engine: Engine) -> None:
    with engine.autocast():
        loss = engine.model(INPUTS).float().square().mean()
    engine.backward(loss)
    assert engine.step().stepped


@pytest.mark.parametrize("recipe", RECIPES)
def test_tied_parameters_stay_one(recipe: str) -> None:
    exact = Tied().double()
    exact(INPUTS.double()).square().mean().backward()
    model = Tied()
    start = model.encode.weight.detach().clone()
    with Engine(model, SGD(model.parameters(), lr=1.0), recipe=recipe) as engine:
        take_step(engine)
        assert model.encode.weight is model.decode.weight
        state = model.state_dict()
        assert torch.equal(state["encode.weight"], state["decode.weight"])
        # Half weights round the update by up to 2**-9 of the weight.
        tolerance = {"fp32": 1e-5, "fp16": 5e-3, "o2": 5e-3}.get(recipe, 0.1)
        assert relative_error(start - state["encode.weight"], exact.encode.weight.grad) < tolerance
        changed = {name: value + 1 for name, value in copy.deepcopy(state).items()}
        model.load_state_dict(changed)
        kept_in = {"half-bn32": torch.float16, "bf16-sr": torch.bfloat16}
        kept_in |= {"bf16-kahan": torch.bfloat16}
        expected = changed["decode.weight"].to(kept_in.get(recipe, torch.float32)).float()
        for name in ("encode.weight", "decode.weight"):
            assert torch.equal(model.state_dict()[name], expected)


@pytest.mark.parametrize("recipe", RECIPES)
def test_frozen_parameters_stay_and_thawed_ones_move(recipe: str) -> None:
    model = mlp()
    model[0].requires_grad_(requires_grad=False)
    with Engine(model, SGD(model.parameters(), lr=1.0, momentum=0.9), recipe=recipe) as engine:
        before = copy.deepcopy(model.state_dict())
        take_step(engine)
        after = copy.deepcopy(model.state_dict())
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == {"2.weight", "2.bias"}
        model[0].requires_grad_(requires_grad=True)
        take_step(engine)
        assert not torch.equal(model.state_dict()["0.weight"], before["0.weight"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_groups_keep_their_learning_rates(recipe: str) -> None:
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    with Engine(model, SGD(groups, lr=1.0), recipe=recipe) as engine:
        before = copy.deepcopy(model.state_dict())
        take_step(engine)
        after = model.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"2.weight", "2.bias"}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_group_added_later_trains_under_the_recipe(recipe: str, accumulate: int) -> None:
    model = mlp()
    optimizer = SGD(model[2].parameters(), lr=0.5, momentum=0.9)
    with Engine(model, optimizer, recipe=recipe, accumulate=accumulate) as engine:
        for _ in range(accumulate):
            with engine.autocast():
                loss = engine.model(INPUTS).float().square().mean()
            engine.backward(loss)
            engine.step()
        engine.models[0].zero_grad()
        optimizer.add_param_group({"params": model[0].parameters(), "lr": 1.0})
        before = copy.deepcopy(model.state_dict())
        for _ in range(accumulate):
            with engine.autocast():
                loss = engine.model(INPUTS).float().square().mean()
            engine.backward(loss)
            result = engine.step()
        assert result.stepped
        after = model.state_dict()
        assert all(not torch.equal(before[name], after[name]) for name in before)
        held = {p.dtype for group in optimizer.param_groups for p in group["params"]}
        assert len(held) == 1
        assert (held == {torch.float32}) is (recipe in {"fp32", "fp16", "o2"})


def test_start_momentum_gives_zeros_unless_dampening_needs_the_first_gradient() -> None:
    params = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    optimizer = SGD(
        [{"params": params[:1], "momentum": 0.9}, {"params": params[1:], "momentum": 0.0}]
    )
    assert start_momentum(optimizer)
    assert torch.equal(optimizer.state[params[0]]["momentum_buffer"], torch.zeros(2))
    assert "momentum_buffer" not in optimizer.state[params[1]]
    assert not start_momentum(SGD([nn.Parameter(torch.ones(2))], momentum=0.9, dampening=0.1))


def test_an_optimizer_may_hold_parameters_of_no_model() -> None:
    model = mlp()
    temperature = nn.Parameter(torch.ones(()))
    optimizer = SGD([*model.parameters(), temperature], lr=0.1)
    with Engine(model, optimizer, recipe="fp16") as engine:
        with engine.autocast():
            loss = (engine.model(INPUTS).float() * temperature).square().mean()
        engine.backward(loss)
        assert engine.step().stepped
    assert float(temperature.detach()) != 1
    assert not differences(model.state_dict().keys() ^ mlp().state_dict().keys(), set())


def after_two_backwards(recipe, loss_ids, drop=None):
    """Train one step of two backwards, with whatever comes between them."""
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe) as engine:
        for scale, loss_id in zip((3.0, 1.0), loss_ids, strict=True):
            with engine.autocast():
                loss = (engine.model(INPUTS * scale) + 1).float().square().mean()
            if scale == 1.0 and drop is not None:
                drop(engine)
            if scale == 1.0 or drop is not None:
                engine.backward(loss, loss_id=loss_id)
        assert engine.step().stepped
    return model.state_dict()


DROPS = [by_optimizer, by_optimizer_to_zeros, by_model, by_model_to_zeros, by_hand]


@pytest.mark.filterwarnings("ignore:gradients of this accumulation window are gone")
@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("loss_ids", [(None, None), ("own", None), ("a", "b")])
@pytest.mark.parametrize("recipe", RECIPES[:4])
def test_gradients_that_the_loop_zeroes_are_not_applied(recipe, loss_ids, drop) -> None:
    if recipe in ("fp16", "o2"):
        recipe = {"base": recipe, "loss_scale": 1024.0}  # that they start with overflows here
    dropped = after_two_backwards(recipe, loss_ids, drop)
    assert not differences(dropped, after_two_backwards(recipe, loss_ids))


def test_an_overflow_that_the_loop_zeroes_skips_nothing() -> None:
    model = mlp()
    recipe = {"base": "o2", "loss_scale": 1024.0}
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe) as engine:
        engine.backward(engine.model(INPUTS).mean() * torch.inf, loss_id="own")
        engine.optimizer.zero_grad()
        with pytest.warns(EngineWarning, match="zero_grad"):
            take_step(engine)


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_optimizer_gets_its_own_zero_grad_back(recipe: str) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    own = optimizer.zero_grad
    with Engine(model, optimizer, recipe=recipe):
        assert optimizer.zero_grad != own
        assert copy.deepcopy(optimizer).zero_grad.__func__ is SGD.zero_grad
    assert optimizer.zero_grad == own
