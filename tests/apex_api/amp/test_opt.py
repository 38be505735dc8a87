"""The first API: an optimizer that scales its own losses."""

import copy

import pytest
import torch
from torch.optim import SGD

from halfstep.apex import amp

from .tiny import Weights


@pytest.fixture
def wrapped():
    handle = amp.init()
    model = Weights(1.0)
    optimizer = handle.wrap_optimizer(SGD(model.parameters(), 0.5), num_loss=2)
    return model, optimizer


def backward(model, optimizer, x):
    with optimizer.scale_loss(model(torch.tensor(x))) as scaled:
        scaled.backward()


def test_losses_are_unscaled_and_added_up(wrapped):
    model, optimizer = wrapped
    for _ in range(2):
        optimizer.zero_grad()
        backward(model, optimizer, 0.25)
        backward(model, optimizer, 0.5)
        assert model.weight.grad.item() == 0.75
        optimizer.step()
    assert model.weight.item() == 1 - 2 * 0.5 * 0.75


def test_an_overflow_of_either_skips(wrapped, capsys):
    model, optimizer = wrapped
    backward(model, optimizer, float("inf"))
    backward(model, optimizer, 1.0)
    optimizer.step()
    assert model.weight.item() == 1.0
    assert "Gradient overflow, skipping update" in capsys.readouterr().out
    assert [scaler.loss_scale() for scaler in optimizer._scalers] == [2.0**15, 2.0**16]


def test_one_loss_too_many_and_closures_are_refused(wrapped):
    model, optimizer = wrapped
    backward(model, optimizer, 1.0)
    backward(model, optimizer, 1.0)
    with pytest.raises(RuntimeError, match=r"called for 2; write.*num_loss=3"):
        backward(model, optimizer, 1.0)
    with pytest.raises(NotImplementedError, match="`closure` argument is unsupported"):
        optimizer.step(lambda: None)


def test_everything_else_is_the_optimizers(wrapped):
    _, optimizer = wrapped
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.5
    assert copy.copy(optimizer).param_groups is optimizer.param_groups
