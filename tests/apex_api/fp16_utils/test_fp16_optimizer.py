"""`FP16_Optimizer`: masters, scale, clipping, closures, checkpoints."""

import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD

import halfstep.apex
from halfstep.apex.amp.scaler import LossScaler
from halfstep.apex.fp16_utils import FP16_Optimizer


class Mixed(nn.Module):
    """A half weight and an fp32 one; the gradient of each is the input."""

    def __init__(self):
        super().__init__()
        self.narrow = nn.Parameter(torch.tensor([1.0]).half())
        self.single = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x):
        return (self.narrow.float() * x + self.single * x).sum()


def start(lr=0.5, **options):
    model = Mixed()
    return model, FP16_Optimizer(SGD(model.parameters(), lr), verbose=False, **options)


def grads(optimizer):
    return [g.item() for group in optimizer.inspect_master_grad_data() for g in group]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_loss_scale": 128.0},
        {"dynamic_loss_scale": True, "dynamic_loss_args": {"init_scale": 64.0}},
    ],
)
def test_gradients_of_masters_are_true(options):
    model, optimizer = start(**options)
    optimizer.backward(model(3.0))
    assert grads(optimizer) == [3.0, 3.0]
    optimizer.step()
    assert (model.narrow.item(), model.single.item()) == (-0.5, -0.5)
    assert optimizer.fp32_from_fp16_groups[0][0].item() == -0.5
    assert optimizer.fp16_groups == [[model.narrow]]
    assert optimizer.fp32_from_fp32_groups == [[model.single]]


@pytest.mark.parametrize("together", [True, False])
def test_gradients_of_several_losses_add_up(together):
    model, optimizer = start(static_loss_scale=4.0)
    optimizer.backward(model(1.0), update_master_grads=not together)
    optimizer.backward(model(2.0), update_master_grads=not together)
    if together:
        optimizer.update_master_grads()
    assert grads(optimizer) == [3.0, 3.0]
    for set_to_none in (False, True):
        optimizer.zero_grad(set_grads_to_None=set_to_none)
        for param in (model.narrow, model.single, *optimizer.fp32_from_fp16_groups[0]):
            assert param.grad is None if set_to_none else param.grad.item() == 0
    optimizer.backward(model(2.0), retain_graph=True)
    assert grads(optimizer) == [2.0, 2.0]


def test_an_overflow_skips_and_halves(capsys):
    model, optimizer = start(dynamic_loss_scale=True, dynamic_loss_args={"init_scale": 64.0})
    optimizer.backward(model(float("inf")))
    assert optimizer.overflow
    assert optimizer.clip_master_grads(1.0) == -1
    assert optimizer.inspect_master_grad_data() is None
    optimizer.step()
    assert (model.narrow.item(), optimizer.loss_scale) == (1.0, 32.0)
    assert "Gradient overflow.  Skipping step, reducing loss scale to 32.0" in (
        capsys.readouterr().out
    )
    optimizer.zero_grad()
    optimizer.backward(model(1.0))
    optimizer.step()
    assert model.narrow.item() == 0.5
    optimizer.loss_scale = 8.0
    assert optimizer.loss_scaler.loss_scale() == 8.0


def test_masters_are_clipped():
    model, optimizer = start(static_loss_scale=8.0)
    optimizer.backward(model(3.0))
    assert optimizer.clip_master_grads(1.0).item() == pytest.approx(18**0.5)
    assert grads(optimizer) == pytest.approx([0.5**0.5] * 2, rel=1e-5)


def test_closures_work_and_are_called_again_after_an_overflow(capsys):
    model = Mixed()
    optimizer = FP16_Optimizer(
        LBFGS(model.parameters(), max_iter=4),
        dynamic_loss_scale=True,
        verbose=False,
    )
    bad = [float("inf"), 1.0, 1.0]

    def closure():
        optimizer.zero_grad()
        loss = model(1.0) ** 2 * (bad.pop(0) if bad else 1.0)
        optimizer.backward(loss)
        return loss

    optimizer.step(closure)
    assert abs(model(1.0).item()) < 0.1
    assert "OVERFLOW within closure! Skipping step, reducing loss scale to 32768.0" in (
        capsys.readouterr().out
    )


def test_a_closure_that_never_has_finite_gradients_ends():
    model, optimizer = start(dynamic_loss_scale=True)

    def closure():
        optimizer.backward(model(float("nan")))

    with pytest.raises(RuntimeError, match=r"not finite at a loss scale of 0.000976562, its floor"):
        optimizer.step(closure)


def test_a_resumed_run_is_bitwise_the_same():
    def train(model, optimizer, inputs):
        for x in inputs:
            optimizer.zero_grad()
            optimizer.backward(model(x))
            optimizer.step()

    def make():
        torch.manual_seed(0)
        model = Mixed()
        inner = SGD(model.parameters(), 0.1, momentum=0.9)
        return model, FP16_Optimizer(inner, dynamic_loss_scale=True, verbose=False)

    whole, optimizer = make()
    train(whole, optimizer, [0.1, 0.01, float("inf"), 0.001, 0.1])
    model, optimizer = make()
    train(model, optimizer, [0.1, 0.01, float("inf")])
    state = optimizer.state_dict()
    assert list(state) == [
        *("loss_scaler", "dynamic_loss_scale", "overflow", "first_closure_call_this_step"),
        *("optimizer_state_dict", "fp32_from_fp16"),
    ]
    file = io.BytesIO()
    torch.save([model.state_dict(), state], file)
    file.seek(0)
    model_state, state = torch.load(file, weights_only=True)
    model, optimizer = make()
    model.load_state_dict(model_state)
    optimizer.load_state_dict(state)
    assert optimizer.loss_scale == 2.0**15
    assert optimizer.overflow
    train(model, optimizer, [0.001, 0.1])
    assert torch.equal(model.narrow, whole.narrow)
    assert torch.equal(model.single, whole.single)


def test_a_checkpoint_that_apex_wrote_loads_with_weights_only(monkeypatch):
    _, optimizer = start(dynamic_loss_scale=True)
    file = io.BytesIO()
    halfstep.apex.install()
    monkeypatch.setattr(LossScaler, "__module__", "apex.amp.scaler")
    torch.save(optimizer.state_dict(), file)
    monkeypatch.undo()
    halfstep.apex.uninstall()
    file.seek(0)
    assert b"apex.amp.scaler" in file.getvalue()
    assert b"halfstep" not in file.getvalue()
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    assert optimizer.loss_scale == 2.0**16


def test_groups_and_state_are_the_optimizers():
    model, optimizer = start()
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.backward(model(1.0))
    optimizer.step()
    assert model.narrow.item() == 0.75
    assert optimizer.state is optimizer.optimizer.state
    optimizer.param_groups = groups = [*optimizer.param_groups]
    assert optimizer.optimizer.param_groups is groups
    optimizer.state = state = {}
    assert optimizer.optimizer.state is state


def test_it_is_not_pickled_and_refuses_double():
    _, optimizer = start()
    with pytest.raises(RuntimeError, match=r"using state_dict\(\)"):
        pickle.dumps(optimizer)
    with pytest.raises(TypeError, match="DoubleTensor"):
        FP16_Optimizer(SGD([nn.Parameter(torch.ones(1).double())], 0.1), verbose=False)


def test_parameters_are_listed_when_verbose(capsys):
    FP16_Optimizer(SGD(Mixed().parameters(), 0.1))
    assert capsys.readouterr().out.splitlines() == [
        "FP16_Optimizer processing param group 0:",
        "FP16_Optimizer received torch.HalfTensor with torch.Size([1])",
        "FP16_Optimizer received torch.FloatTensor with torch.Size([1])",
    ]
