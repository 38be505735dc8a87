"""Averages of the weights are kept in fp32, whatever the weights are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD

from halfstep.engine import EMA, SWA, Engine
from halfstep.engine.average import WeightAverage

from .tiny import Calls, differences, mlp


def constant_descent(
    recipe: str, average: EMA | SWA, steps: int, lr: float, *, overflow_at: int | None = None
) -> tuple[Engine, list[torch.Tensor]]:
    """Descend a constant unit gradient from 1; return the most exact weights of each step."""
    layer = nn.Linear(1, 4, bias=False)
    nn.init.ones_(layer.weight)
    weights = []
    with Engine(layer, SGD(layer.parameters(), lr=lr), recipe=recipe, average=average) as engine:
        for step in range(steps):
            with engine.autocast():
                loss = engine.model(torch.ones(1, 1)).float().sum() * 2.0**-7
            engine.backward(loss * float("inf") if step == overflow_at else loss)
            engine.step()
            weights.append(engine.optimizer.param_groups[0]["params"][0].detach().double().clone())
        averaged = engine.averaged_state_dict()["weight"]
        assert averaged.dtype == torch.float32
        weights.append(averaged.double())
    return engine, weights


@pytest.mark.parametrize("recipe", ["fp32", "bf16", "o2", "bf16-true"])
def test_ema_moves_where_one_in_bf16_would_stall(recipe: str) -> None:
    _, (*weights, averaged) = constant_descent(recipe, EMA(0.999), 20, lr=2.0)
    exact = torch.ones(4, 1, dtype=torch.float64)
    stalled = torch.ones(4, 1, dtype=torch.bfloat16)
    for weight in weights:
        exact = 0.999 * exact + 0.001 * weight
        stalled.lerp_(weight.bfloat16(), 0.001)
    torch.testing.assert_close(averaged, exact, rtol=1e-6, atol=1e-7)
    assert (exact < 0.9985).all()
    assert (stalled == 1).all()


def test_ema_sees_what_a_compensation_keeps() -> None:
    _, (*weights, averaged) = constant_descent("bf16-kahan", EMA(0.5), 20, lr=1e-2)
    assert (weights[-1] == 1).all()
    exact = 1.0
    for step in range(20):
        exact = 0.5 * exact + 0.5 * (1 - (step + 1) * 1e-2 * 2.0**-7)
    torch.testing.assert_close(averaged, torch.full((4, 1), exact).double(), rtol=4e-5, atol=0)


@pytest.mark.parametrize("overflow_at", [None, 0, 3])
def test_swa_is_the_mean_of_every_nth_real_step(overflow_at: int | None) -> None:
    steps = 8 if overflow_at is None else 9
    _, (*weights, averaged) = constant_descent(
        "o2", SWA(start=2, every=3), steps, lr=0.3, overflow_at=overflow_at
    )
    real = [w for step, w in enumerate(weights) if step != overflow_at]
    torch.testing.assert_close(averaged, (real[4] + real[7]) / 2, rtol=1e-6, atol=0)


@pytest.mark.parametrize("recipe", ["fp16", "o2", "bf16-true"])
def test_evaluating_runs_the_averaged_weights_and_puts_back_the_others(recipe: str) -> None:
    model = mlp(norm=True)
    inputs = torch.randn(4, 6)
    optimizer = SGD(model.parameters(), lr=0.5)
    with Engine(model, optimizer, recipe=recipe, average=EMA(0.5)) as engine:
        for _ in range(3):
            with engine.autocast():
                loss = engine.model(inputs).float().square().mean()
            engine.backward(loss)
            engine.step()
        before = copy.deepcopy(dict(model.named_parameters()))
        averaged = engine.averaged_state_dict()
        with engine.evaluating():
            for name, param in model.named_parameters():
                assert torch.equal(param.float(), averaged[name].to(param.dtype).float())
                # The bias before the batch norm has no gradient.
                assert torch.equal(param, before[name]) is (name == "0.bias") or recipe == "fp16"
        assert not differences(dict(model.named_parameters()), before)
        # The statistics are not averaged, and all of it is a checkpoint of the model.
        assert torch.equal(averaged["1.running_mean"], model[1].running_mean.float())
        assert averaged.keys() == mlp(norm=True).state_dict().keys()


def test_many_weights_are_averaged_by_a_few_kernels() -> None:
    params = [torch.full((size,), 1.0) for size in range(1, 31)]
    average = WeightAverage(EMA(0.75), params, lambda param: param)
    torch._foreach_add_(params, 4.0)
    with Calls() as calls:
        average.update(None)
    assert all((mean == 2).all() for mean in average.weights.values())
    assert "lerp_" not in calls.names
    assert calls.names.count("_foreach_add_") == 1


def test_averages_that_cannot_be_are_refused() -> None:
    for decay in (0.0, 1.0, 2.0):
        with pytest.raises(ValueError, match="EMA decay is"):
            EMA(decay)
    with pytest.raises(ValueError, match="every 1 or more"):
        SWA(every=0)
    model = mlp()
    with (
        Engine(model, SGD(model.parameters(), lr=1.0)) as engine,
        pytest.raises(ValueError, match="keeps no average"),
    ):
        engine.averaged_state_dict()
