"""`StepResult` is a snapshot of its own step."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.optim import SGD

from engine.tiny import mlp, with_infinite_gradient
from halfstep.engine import Engine, StepResult

INPUTS = torch.ones(4, 6)


def test_results_stay_what_they_were_as_training_goes_on() -> None:
    model = mlp()
    recipe = {"base": "fp16", "loss_scale": {"init": 64, "growth_interval": 1}}
    results: list[StepResult] = []
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe, accumulate=2) as engine:
        for step in range(6):
            with engine.autocast():
                output = engine.model(INPUTS) * (step + 1)
                if step == 2:
                    output = with_infinite_gradient(output)
            engine.backward(output.float().square().mean())
            results.append(engine.step())
    assert [r.closed for r in results] == [False, True] * 3
    assert [r.stepped for r in results] == [False, True, False, False, False, True]
    assert [r.skipped for r in results] == [False, False, False, True, False, False]
    assert [r.found_inf for r in results] == [r.skipped for r in results]
    assert [r.loss_scale for r in results[1::2]] == [64, 128, 64]
    assert [r.grad_norm is None for r in results] == [True, False] * 3
    assert 0 < results[1].grad_norm < results[5].grad_norm < float("inf")


def test_results_cannot_be_changed() -> None:
    result = StepResult(())
    assert not (result.closed)
    assert not (result.stepped)
    assert not (result.skipped)
    assert not (result.found_inf)
    assert result.grad_norm is None
    assert result.loss_scale == 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.optimizers = ()


def test_the_norm_is_taken_before_clipping_and_over_all_optimizers() -> None:
    models = [mlp(0), mlp(1)]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    with Engine(models, optimizers, clip_norm=1e-3) as engine:
        engine.backward((models[0](INPUTS) + models[1](INPUTS)).square().mean())
        grads = [[p.grad.clone() for p in model.parameters()] for model in models]
        result = engine.step()
    norms = [float(torch.cat([g.flatten() for g in each]).norm()) for each in grads]
    assert [each.grad_norm for each in result.optimizers] == pytest.approx(norms)
    assert result.grad_norm == pytest.approx((norms[0] ** 2 + norms[1] ** 2) ** 0.5)
    assert result[1] is result.optimizers[1]


def test_printing_a_result_says_what_happened() -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16", accumulate=2) as engine:
        said = []
        for factor in (1.0, 1.0, torch.inf, 1.0):
            with engine.autocast():
                loss = engine.model(torch.ones(2, 6)).float().square().mean()
            engine.backward(loss * factor)
            said.append(str(engine.step()))
    assert said[0] == said[2] == "window open"
    assert said[1].startswith("stepped, grad_norm ")
    assert said[1].endswith(", loss_scale 65536")
    assert said[3].startswith("skipped, ")
