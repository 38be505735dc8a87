"""`engine.grad`: true-valued, differentiable gradients, as a gradient penalty needs them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from engine.tiny import mlp, relative_error
from halfstep.engine import Engine

GENERATOR = torch.Generator().manual_seed(0)
REAL, FAKE = (torch.randn(8, 6, generator=GENERATOR) for _ in range(2))
MIXED = 0.3 * REAL + 0.7 * FAKE
# Twice through the net, and the square of a norm: about twenty roundings to fp16 or bf16.
TOLERANCE = {"fp32": 1e-5, "fp16": 20 * 2.0**-11, "o2": 20 * 2.0**-11, "bf16": 20 * 2.0**-8}


def critic() -> nn.Module:
    return mlp(4)


def wasserstein_loss(score, gradient: torch.Tensor) -> torch.Tensor:
    """Gulrajani et al. (arXiv:1704.00028), equation 3."""
    penalty = (gradient.flatten(1).norm(dim=1) - 1).square().mean()
    return score(FAKE).mean() - score(REAL).mean() + 10 * penalty


@pytest.mark.parametrize("recipe", TOLERANCE)
def test_gradient_penalty_equals_float64(recipe: str) -> None:
    exact = critic().double()
    points = MIXED.double().requires_grad_()
    (true,) = torch.autograd.grad(exact(points).sum(), points, create_graph=True)
    loss = wasserstein_loss(lambda x: exact(x.double()), true)
    loss.backward()

    model = critic()
    settings = {"base": recipe, "loss_scale": 1024} if recipe in {"fp16", "o2"} else recipe
    with Engine(model, SGD(model.parameters(), lr=1.0), recipe=settings) as engine:
        start = engine.model.state_dict()
        start = {name: value.clone() for name, value in start.items()}
        points = MIXED.clone().requires_grad_()
        with engine.autocast():
            (gradient,) = engine.grad(engine.model(points), points, create_graph=True)
            assert gradient.dtype == torch.float32
            assert relative_error(gradient, true) < TOLERANCE[recipe]
            ours = wasserstein_loss(lambda x: engine.model(x).float(), gradient)
        assert float(ours.detach()) == pytest.approx(float(loss.detach()), rel=TOLERANCE[recipe])
        engine.backward(ours)
        assert engine.step().stepped
        after = engine.model.state_dict()
    for name, param in exact.named_parameters():
        # The bias of the last layer cancels out, between real and fake.
        if name != "2.bias":
            assert relative_error(start[name] - after[name], param.grad) < TOLERANCE[recipe]


def test_small_gradients_survive_because_they_are_scaled_inside() -> None:
    """A gradient of 1e-9 is below the smallest number of fp16, 6e-8."""
    model = nn.Linear(6, 3)
    with Engine(model, SGD(model.parameters(), lr=1.0), recipe="fp16") as engine:
        points = REAL.clone().requires_grad_()
        with engine.autocast():
            output = engine.model(points)
        (gradient,) = engine.grad(output.float() * 1e-9, points)
    expected = (model.weight.detach().sum(0) * 1e-9).expand_as(points)
    assert relative_error(gradient, expected) < 5e-3


def test_the_scale_of_a_gradient_is_the_one_it_was_made_with() -> None:
    """An update between `grad` and `backward` changes the scale, not the gradient's value."""
    model = mlp()
    recipe = {"base": "fp16", "loss_scale": {"init": 256, "growth_interval": 1}}
    with Engine(model, SGD(model.parameters(), lr=0.0), recipe=recipe) as engine:
        points = REAL.clone().requires_grad_()

        def penalty() -> torch.Tensor:
            with engine.autocast():
                (gradient,) = engine.grad(engine.model(points), points, create_graph=True)
            return gradient.square().sum()

        early = penalty()
        engine.backward(penalty())
        first = engine.step()
        engine.backward(early)
        second = engine.step()
    assert second.loss_scale == 2 * first.loss_scale
    assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-2)


@pytest.mark.parametrize("init", [1.0, 2.0**16, 2.0**24])
def test_no_loss_scale_makes_a_gradient_overflow_by_itself(init: float) -> None:
    """The scale itself, as the gradient of a sum, is beyond fp16 from 65,520 on."""
    model = mlp()
    recipe = {"base": "fp16", "loss_scale": init}
    with Engine(model, SGD(model.parameters(), lr=1.0), recipe=recipe) as engine:
        points = REAL.clone().requires_grad_()
        with engine.autocast():
            output = engine.model(points)
        (gradient,) = engine.grad(output, points)
    exact = REAL.double().requires_grad_()
    (true,) = torch.autograd.grad(model.double()(exact).sum(), exact)
    assert relative_error(gradient, true) < TOLERANCE["fp16"]


def test_unused_inputs_are_zero_where_allowed() -> None:
    model = mlp()
    points, unused = REAL.clone().requires_grad_(), torch.ones(2, requires_grad=True)
    with Engine(model, SGD(model.parameters(), lr=1.0), recipe="fp16") as engine:
        with pytest.raises(RuntimeError):
            engine.grad(engine.model(points), [points, unused])
        _, zero = engine.grad(engine.model(points), [points, unused], allow_unused=True)
    assert torch.equal(zero, torch.zeros(2))
