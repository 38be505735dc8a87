"""SGD with one call for all parameters: the bits and the state of torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from halfstep.optim.sgd import MOST, SGD

SHAPES = ((5, 7), (5,), (3, 2, 3, 3), (3,), ())
SETTINGS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2},
    {"weight_decay": 1e-2},
    {"momentum": 0.9, "maximize": True},
]


def _params() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def _train(kind: type[torch.optim.Optimizer], settings: dict, steps: int = 6):
    """Train with random gradients; each step leaves another parameter out, and rates change."""
    params = _params()
    groups = [{"params": params[:3]}, {"params": params[3:], "lr": 0.05}]
    optimizer = kind(groups, lr=0.1, **settings)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        for number, param in enumerate(params):
            gradient = torch.randn(param.shape, generator=generator)
            param.grad = None if number == step else gradient
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9
    return params, optimizer


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_parameters_and_state_are_those_of_torchs_sgd_bit_for_bit(settings) -> None:
    own, optimizer = _train(SGD, settings)
    params, reference = _train(torch.optim.SGD, settings)
    for mine, its in zip(own, params, strict=True):
        assert torch.equal(mine, its)
    states, others = optimizer.state_dict(), reference.state_dict()
    assert states["param_groups"] == others["param_groups"]
    assert states["state"].keys() == others["state"].keys()
    for key, state in others["state"].items():
        for name, value in state.items():
            kept = states["state"][key][name]
            assert torch.equal(kept, value) if isinstance(value, torch.Tensor) else kept == value


@pytest.mark.parametrize("is_large", [False, True])
def test_all_parameters_of_a_small_model_are_updated_in_one_call(monkeypatch, is_large) -> None:
    calls = []
    real = torch._foreach_add_

    def counted(tensors, *given, **named):
        calls.append(len(tensors))
        real(tensors, *given, **named)

    params = [*_params(), *([nn.Parameter(torch.zeros(MOST))] if is_large else [])]
    optimizer = SGD(params, lr=0.1)
    for param in params:
        param.grad = torch.ones_like(param)
    monkeypatch.setattr(torch, "_foreach_add_", counted)
    optimizer.step()
    assert calls == ([] if is_large else [len(SHAPES)])


def test_gradients_are_left_as_they_are() -> None:
    params = _params()
    optimizer = SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)
    for _ in range(2):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    assert all(torch.equal(param.grad, torch.ones_like(param)) for param in params)


def test_a_closure_is_evaluated_with_gradients_on() -> None:
    param = nn.Parameter(torch.ones(3))
    optimizer = SGD([param], lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 3.0
    assert torch.allclose(param, torch.full((3,), 0.8))


def test_sparse_gradients_are_torchs_own_step() -> None:
    def trained(kind: type[torch.optim.Optimizer]) -> torch.Tensor:
        torch.manual_seed(0)
        table = nn.Embedding(4, 2, sparse=True)
        optimizer = kind(table.parameters(), lr=0.1)
        table(torch.tensor([1, 3])).sum().backward()
        optimizer.step()
        return table.weight.detach()

    assert torch.equal(trained(SGD), trained(torch.optim.SGD))
