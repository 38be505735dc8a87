"""Rounded updates of bf16 weights do not stall, and stochastic rounding is fair."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW

from halfstep.engine import Engine
from halfstep.kernels.native import fused
from halfstep.kernels.rounding import LARGE, round_stochastically
from halfstep.mechanisms.update import technique as rounding
from halfstep.mechanisms.update.technique import RoundedUpdate
from halfstep.optim import foreach

OPTIMIZERS = {
    "sgd": partial(SGD, lr=1e-3),
    "momentum": partial(SGD, lr=1e-4, momentum=0.9),
    "nesterov": partial(SGD, lr=1e-4, momentum=0.9, nesterov=True),
    "adam": partial(Adam, lr=1e-3),
    "adamw": partial(AdamW, lr=1e-3, weight_decay=0.0),
    "adamw-fused": partial(AdamW, lr=1e-3, weight_decay=0.0, fused=True),
}


def after_constant_descent(recipe: str, build, elements: int = 10_000) -> torch.Tensor:
    """Take 100 steps on a unit gradient from 1; return weights plus what compensates them."""
    layer = nn.Linear(1, elements, bias=False)
    nn.init.ones_(layer.weight)
    with Engine(layer, build(layer.parameters()), recipe=recipe) as engine:
        for _ in range(100):
            engine.backward(engine.model(torch.ones(1, 1)).float().sum())
            engine.step()
        weights = layer.state_dict()["weight"].double()
        if recipe == "bf16-kahan":
            (kept,) = engine.state_dict()["techniques"]["RoundedUpdate"]["compensations"]
            assert kept.dtype == torch.bfloat16
            weights = weights + kept.double()
    return weights


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_nearest_stalls_and_the_others_go_as_far_as_fp32(build) -> None:
    exact = 1 - after_constant_descent("fp32", build, 1)
    assert 0.05 < float(exact) < 0.15
    assert (after_constant_descent("bf16-true", build, 1) == 1).all()
    for recipe in ("bf16-sr", "bf16-kahan"):
        moved = 1 - after_constant_descent(recipe, build).mean()
        assert float(moved) == pytest.approx(float(exact), rel=0.01)


def test_adamw_of_the_claim_reaches_0_900() -> None:
    assert float(after_constant_descent("fp32", OPTIMIZERS["adamw"], 1)) == pytest.approx(
        0.900, abs=5e-4
    )


def test_rounding_is_unbiased() -> None:
    """100,000 draws for each of 12 values; an honest one fails with a chance of 12 * 6e-7.

    A draw falls on the far neighbour with probability p; the mean of n draws has a standard error
    of spacing * sqrt(p (1 - p) / n), and five of them are allowed.
    """
    draws = 100_000
    generator = torch.Generator().manual_seed(0)
    for exponent in (-3.0, 0.0, 20.0):
        for p in (1 / 65536, 6554 / 65536, 0.5, 50463 / 65536):
            spacing = 2.0**exponent * 2.0**-7
            value = 2.0**exponent * 1.5 + p * spacing
            for sign in (1, -1):
                exact = torch.full((draws,), sign * value)
                rounded = round_stochastically(exact, generator)
                assert rounded.dtype == torch.bfloat16
                error = float(rounded.double().mean()) - float(exact[0])
                assert abs(error) < 5 * spacing * math.sqrt(p * (1 - p) / draws)


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32), st.integers(0, 2**31))
def test_rounding_picks_a_neighbour_and_keeps_what_bf16_holds(value: float, seed: int) -> None:
    exact = torch.tensor([value])
    rounded = round_stochastically(exact, torch.Generator().manual_seed(seed))
    if math.isnan(value):
        assert rounded.isnan().all()
        return
    nearest = exact.bfloat16()
    if torch.equal(nearest.float(), exact):
        assert torch.equal(rounded, nearest)
        return
    below = (exact.view(torch.int32) & -65536).view(torch.float32)
    above = ((exact.view(torch.int32) & -65536) + 65536).view(torch.float32)
    assert float(rounded) in (float(below), float(above))


def test_a_seed_gives_the_same_weights_and_another_seed_others() -> None:
    def train(seed: int) -> torch.Tensor:
        layer = nn.Linear(1, 100, bias=False)
        nn.init.ones_(layer.weight)
        optimizer = SGD(layer.parameters(), lr=1e-3)
        with Engine(layer, optimizer, recipe="bf16-sr", seed=seed) as engine:
            for step in range(5):
                torch.manual_seed(step + seed)  # The global generator has no part in it.
                engine.backward(engine.model(torch.ones(1, 1)).float().sum())
                engine.step()
        return layer.weight.detach().clone()

    assert torch.equal(train(1), train(1))
    assert not torch.equal(train(1), train(2))


@pytest.mark.parametrize("how", ["stochastic", "kahan"])
def test_updating_in_chunks_changes_nothing(monkeypatch, how) -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).bfloat16()
        model[0].bias.requires_grad_(requires_grad=False)
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters()}]
        optimizer = AdamW(groups, lr=0.01)
        technique = RoundedUpdate(how, seed=3)
        technique.prepare([model], [optimizer])
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 5, dtype=torch.bfloat16)).float().square().sum().backward()
            technique.step(optimizer, optimizer.step)
        moments = [optimizer.state[p]["exp_avg"] for p in model.parameters() if p.requires_grad]
        assert {moment.dtype for moment in moments} == {torch.float32}
        assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]
        return [param.detach().clone() for param in model.parameters()] + moments

    whole = train()
    monkeypatch.setattr(foreach, "CHUNK_ELEMENTS", 20)
    assert all(map(torch.equal, train(), whole))


def descend(sizes: dict[str, tuple[int, ...]], hook=None, **settings) -> list[torch.Tensor]:
    """Take four steps of SGD on random gradients; return weights, momenta and a random number."""
    source = torch.Generator().manual_seed(0)
    params = {
        name: nn.Parameter(torch.randn(size, generator=source).bfloat16())
        for name, size in sizes.items()
    }
    optimizer = SGD(params.values(), **settings)
    if hook is not None:
        optimizer.register_step_pre_hook(hook)
    technique = RoundedUpdate("stochastic", seed=3)
    technique.prepare([], [optimizer])
    for step in range(4):
        for param in params.values():
            param.grad = torch.randn(param.shape, generator=source).bfloat16()
            if step == 3:
                param.grad.view(-1)[:2] = torch.tensor([torch.nan, torch.inf])
        optimizer.param_groups[0]["lr"] *= 0.9
        technique.step(optimizer, optimizer.step)
    momenta = [state["momentum_buffer"] for state in optimizer.state.values() if state]
    (random_state,) = technique.state_dict()["generators"].values()
    momenta.sort(key=lambda momentum: momentum.shape)
    return [*params.values(), *momenta, random_state]


SIZES = {"small": (3, 5), "large": (LARGE + 77,), "bias": (7,), "matrix": (LARGE // 64, 65)}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight_decay": 0.01},
        {"momentum": 0.9, "dampening": 0.3},
        {"momentum": 0.9, "weight_decay": 2e-3, "nesterov": True},
        {"momentum": 0.9, "maximize": True},
    ],
    ids=str,
)
def test_one_pass_over_large_weights_has_the_bits_of_stand_ins(monkeypatch, settings) -> None:
    in_one_pass = descend(SIZES, lr=0.1, **settings)
    monkeypatch.setattr(fused, "library", lambda: None)
    by_pytorch = descend(SIZES, lr=0.1, **settings)
    for one, other in zip(in_one_pass, by_pytorch, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def test_the_pass_updates_large_weights_and_no_others(monkeypatch) -> None:
    if fused.library() is None:
        pytest.skip("no C compiler")
    step, updated = rounding.step_sgd_stochastically, []

    def counted(param, *args):
        updated.append(param.shape)
        step(param, *args)

    monkeypatch.setattr(rounding, "step_sgd_stochastically", counted)
    descend(SIZES, lr=0.1, momentum=0.9)
    # The first step makes the momentum buffers.
    assert updated == [SIZES["large"], SIZES["matrix"]] * 3


def test_a_hook_sees_all_that_the_optimizer_updates() -> None:
    seen = []

    def hook(optimizer: torch.optim.Optimizer, *_: object) -> None:
        seen.append(len(optimizer.param_groups[0]["params"]))

    descend(SIZES, hook, lr=0.1, momentum=0.9)
    assert seen == [len(SIZES)] * 4


def test_optimizers_whose_update_is_not_known_are_refused() -> None:
    layer = nn.Linear(2, 2)
    for build in (torch.optim.RMSprop, torch.optim.LBFGS):
        with pytest.raises(TypeError, match=r"knows torch\.optim\.SGD, Adam and AdamW, not"):
            RoundedUpdate("kahan", seed=0).prepare([layer], [build(layer.parameters())])
