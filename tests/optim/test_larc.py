"""LARC against the rule written out, in float64, and as a wrapper that everything else takes."""

import copy

import pytest
import torch
from torch import nn

from halfstep import Engine
from halfstep.optim.larc import LARC


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def expected(weight, grad, *, lr, trust, clip, decay, eps=1e-8):
    """Return the weight after one plain SGD step with the local learning rate."""
    weight_norm, grad_norm = weight.norm(), grad.norm()
    if not weight_norm or not grad_norm:
        return weight - lr * grad
    rate = trust * weight_norm / (grad_norm + weight_norm * decay + eps)
    rate = min(rate / lr, torch.tensor(1.0)) if clip else rate
    return weight - lr * rate * (grad + decay * weight)


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("trust", [0.02, 10.0])
def test_larc_follows_its_rule(clip, trust):
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(4, 3, generator=generator), torch.zeros(5), torch.ones(2)]
    grads = [torch.randn(4, 3, generator=generator), torch.ones(5), torch.zeros(2)]
    params = [nn.Parameter(value.clone()) for value in values]
    optimizer = LARC(torch.optim.SGD(params, lr=0.1, weight_decay=0.05), trust, clip=clip)
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()
    optimizer.step()
    for param, value, grad in zip(params, values, grads, strict=True):
        after = expected(value.double(), grad.double(), lr=0.1, trust=trust, clip=clip, decay=0.05)
        torch.testing.assert_close(param.detach().double(), after, rtol=1e-6, atol=1e-7)
    assert optimizer.param_groups[0]["weight_decay"] == 0.05


def test_weight_decay_comes_back_after_a_step_that_failed():
    param = nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([param], lr=0.1, weight_decay=0.3)
    inner.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        LARC(inner).step()
    assert inner.param_groups[0]["weight_decay"] == 0.3


def test_groups_state_and_checkpoints_are_those_of_the_wrapped_optimizer():
    model = mlp()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    larc = LARC(inner)
    assert larc.param_groups is inner.param_groups
    model(torch.ones(1, 6)).sum().backward()
    larc.step()
    assert larc.state is inner.state
    larc.zero_grad()
    assert all(param.grad is None for param in model.parameters())
    larc.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert len(inner.param_groups) == 2
    state = larc.state_dict()
    assert state["state"].keys() == inner.state_dict()["state"].keys()
    larc.load_state_dict(state)
    assert repr(larc) == repr(inner)
    twin = copy.deepcopy(larc)
    assert twin.optim is not inner
    assert twin.trust_coefficient == larc.trust_coefficient


def test_schedulers_and_the_engine_take_it():
    model = mlp()
    optimizer = LARC(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), clip=False)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    images = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    with Engine(model, optimizer, recipe="o2", scheduler=scheduler) as engine:
        before = [param.detach().clone() for param in model.parameters()]
        for factor in (float("inf"), 1.0):
            with engine.autocast():
                loss = engine.model(images).square().mean() * 1e-3
            engine.backward(loss * factor)
            result = engine.step()
            if factor != 1.0:
                pairs = zip(before, model.parameters(), strict=True)
                assert all(torch.equal(old, new) for old, new in pairs)
        engine.flush()
        assert result.stepped
        assert optimizer.param_groups[0]["lr"] == 0.05
        assert not torch.equal(before[0], next(model.parameters()))
    assert optimizer.param_groups[0]["params"][0] is next(model.parameters())


def test_a_closure_is_called():
    param = nn.Parameter(torch.ones(1))
    optimizer = LARC(torch.optim.SGD([param], lr=0.5))

    def closure():
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1.0
    assert param.item() < 1.0
