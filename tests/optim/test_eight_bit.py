"""Adam with moments in 8 bits: the bytes of each parameter, and that it trains as Adam does."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from halfstep import Engine
from halfstep.optim import in_one_kernel
from halfstep.optim.bf16 import AdamBf16
from halfstep.optim.eight_bit import Adam8

SPLIT8 = {"base": "bf16-true", "master_weights": "split8"}
SPLIT16 = {"base": "bf16-true", "master_weights": "split16"}


@pytest.fixture
def _on_a_cpu(monkeypatch):
    monkeypatch.setattr(in_one_kernel, "DEVICES", {"cpu", "cuda"})


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize(
    ("recipe", "build", "most"),
    [
        ("bf16-sr", AdamBf16, 8.0),
        ("bf16-sr", Adam8, 6.3),
        (SPLIT8, Adam8, 7.3),
        (SPLIT16, Adam8, 8.3),
        ("bf16-sr", partial(AdamW, fused=True), 12.0),
    ],
)
def test_bytes_of_a_parameter(recipe, build, most):
    """Weights, gradients, moments, scales and missing bits together, without step counts."""
    layer = nn.Linear(512, 512, bias=False)
    engine = Engine(layer, build(layer.parameters()), recipe=recipe)
    engine.backward(engine.model(torch.randn(4, 512).bfloat16()).float().square().mean())
    gradient = layer.weight.grad
    engine.step()
    (state,) = engine.optimizers[0].state.values()
    kept = [layer.weight, gradient, *(each for each in state.values() if each.dim())]
    for technique in engine.state_dict()["techniques"].values():
        kept += [each for each in technique.get("compensations", []) if each is not None]
    size = sum(each.nbytes for each in kept) / layer.weight.numel()
    assert most - 0.4 <= size <= most


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))


def loss_after(engine: Engine, steps: int) -> float:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(256, 8, generator=generator)
    target = inputs.prod(1, keepdim=True).tanh()
    dtype = next(engine.model.parameters()).dtype
    for _ in range(steps):
        loss = nn.functional.mse_loss(engine.model(inputs.to(dtype)).float(), target)
        engine.backward(loss)
        engine.step()
    return float(loss.detach())


@pytest.mark.parametrize("recipe", ["fp32", "bf16-sr", SPLIT8])
def test_it_trains_as_adamw_does(recipe):
    losses = {}
    for name, build in {
        "adamw": partial(AdamW, lr=0.01, weight_decay=0.0), "adam8": partial(Adam8, lr=0.01),
    }.items():  # fmt: skip
        model = net()
        losses[name] = loss_after(Engine(model, build(model.parameters()), recipe=recipe), 150)
    start = loss_after(
        Engine((model := net()), Adam8(model.parameters(), lr=0.0), recipe="fp32"), 1
    )
    assert losses["adamw"] < 0.7 * start
    assert losses["adam8"] < start - 0.9 * (start - losses["adamw"])


def test_without_an_engine_a_resumed_run_takes_the_same_steps():
    def step(model, optimizer, number):
        torch.manual_seed(number)
        model(torch.randn(4, 8).bfloat16()).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    model = net().bfloat16()
    optimizer = Adam8(model.parameters(), lr=0.01, seed=3)
    for number in range(3):
        step(model, optimizer, number)
    other = copy.deepcopy(model)
    resumed = Adam8(other.parameters(), lr=0.01, seed=3)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(3, 6):
        step(model, optimizer, number)
        step(other, resumed, number)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_scaler_of_torch_unscales_its_gradients():
    ends = []
    for scaled in (False, True):
        param = torch.nn.Parameter(torch.full((4,), 0.5))
        optimizer = Adam8([param], lr=0.01, weight_decay=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((param * 1e-3).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        ends.append(param.detach())
    assert torch.equal(*ends)


def test_only_the_first_step_copies_the_count_of_draws_to_the_device(monkeypatch):
    copied, tensor = [], torch.tensor

    def noted(value, **named):
        copied.extend([value] if isinstance(value, int) else [])
        return tensor(value, **named)

    monkeypatch.setattr(torch, "tensor", noted)
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = Adam8([param])
    for _ in range(3):
        param.grad = torch.ones(4)
        optimizer.step()
    assert copied == [0]


def test_other_parameters_are_refused():
    with pytest.raises(TypeError, match="8 bits of fp32 or bf16 parameters"):
        Adam8([nn.Parameter(torch.zeros(3, dtype=torch.float16))])
    model = net()
    optimizer = Adam8(model.parameters())
    model.half()
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    with pytest.raises(TypeError, match=r"torch.float16; write torch.optim.AdamW"):
        optimizer.step()
