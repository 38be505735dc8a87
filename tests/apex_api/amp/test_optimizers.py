"""Optimizers after `initialize`: masters, steps, zeroing, groups, checkpoints."""

import copy
import io
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam
from torch.optim.lr_scheduler import StepLR

from halfstep.apex import amp

from .tiny import Net, Weights, backward, batch, overflow

# At the default of 65536 a gradient of 1 is more than fp16 holds.
SETTINGS = {"opt_level": "O2", "verbosity": 0, "max_loss_scale": 2.0**10}


def o2(model, make=SGD, **options):
    return amp.initialize(model, make(model.parameters(), 0.1), **(SETTINGS | options))


def test_masters_are_made_at_the_first_backward():
    model, optimizer = o2(Net())
    assert list(amp.master_params(optimizer)) == list(model.parameters())
    assert not optimizer._amp_stash.lazy_init_called
    backward(model(batch()).mean(), optimizer)
    stash = optimizer._amp_stash
    assert stash.lazy_init_called
    assert {p.dtype for p in amp.master_params(optimizer)} == {torch.float32}
    assert [p.dtype for p in stash.all_fp16_params] == [torch.float16] * 6
    for half, master in zip(stash.all_fp16_params, stash.all_fp32_from_fp16_params, strict=True):
        assert torch.equal(half, master.half())
        assert master.grad.dtype == torch.float32
    assert stash.all_fp32_from_fp32_params == [model.bn.weight, model.bn.bias]


@pytest.mark.parametrize("how", ["zero_grad", "_lazy_init_maybe_master_weights", "_amp_lazy_init"])
def test_masters_can_be_had_earlier(how):
    _, optimizer = o2(Weights(1.0))
    getattr(optimizer, how)()
    (master,) = amp.master_params(optimizer)
    assert master.dtype == torch.float32
    assert optimizer._amp_stash.all_fp32_from_fp16_params == [master]


def test_a_step_moves_masters_and_rounds_them_into_the_model():
    model, optimizer = o2(Weights(1.0))
    for _ in range(3):
        optimizer.zero_grad()
        backward(model(torch.tensor(2.0**-10)), optimizer)
        optimizer.step()
    (master,) = amp.master_params(optimizer)
    assert master.item() == pytest.approx(1 - 3 * 0.1 * 2**-10, rel=1e-7)
    assert model.weight.item() == torch.tensor(master.item()).half().item()
    assert master.grad is None


def test_masters_start_from_the_weights_before_they_were_rounded():
    model, optimizer = o2(Weights(1 / 3))
    optimizer.zero_grad()
    (master,) = amp.master_params(optimizer)
    assert master.item() == torch.tensor(1 / 3).item()
    model, optimizer = o2(Weights(1 / 3))
    with torch.no_grad():
        model.weight.fill_(2.0)  # the program's own values count, where it wrote some
    optimizer.zero_grad()
    assert next(amp.master_params(optimizer)).item() == 2.0


def test_half_state_that_was_there_becomes_that_of_the_masters():
    model = Weights(1.0).half()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.tensor(2.0).half()).backward()
    optimizer.step()
    assert optimizer.state[model.weight]["momentum_buffer"].dtype == torch.float16
    amp._amp_state.allow_incoming_model_not_fp32 = True
    model, optimizer = amp.initialize(model, optimizer, **SETTINGS)
    optimizer.zero_grad()
    (master,) = amp.master_params(optimizer)
    momentum = optimizer.state[master]["momentum_buffer"]
    assert (momentum.dtype, momentum.item()) == (torch.float32, 2.0)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_takes_set_to_none(set_to_none):
    model, optimizer = o2(Net())
    backward(model(batch()).mean(), optimizer)
    optimizer.zero_grad(set_to_none=set_to_none)
    for param in model.parameters():
        if set_to_none:
            assert param.grad is None
        else:
            assert not param.grad.any()
    assert all(master.grad is None for master in optimizer._amp_stash.all_fp32_from_fp16_params)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_step_before_any_backward_changes_nothing(level):
    model, optimizer = o2(Weights(3.0), opt_level=level)
    optimizer.step()
    assert model.weight.item() == 3.0


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_closures_are_refused_where_losses_are_scaled(level):
    _, optimizer = o2(Weights(3.0), opt_level=level)
    with pytest.raises(RuntimeError, match=r"does not support closure use with optimizers. Run"):
        optimizer.step(lambda: None)
    with pytest.raises(RuntimeError, match="does not support closure use"):
        optimizer.step(closure=lambda: None)


def test_closures_work_where_nothing_is_scaled():
    model, optimizer = o2(Weights(3.0), make=LBFGS, opt_level="O0")

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(())) ** 2
        backward(loss, optimizer)
        return loss

    optimizer.step(closure)
    assert abs(model.weight.item()) < 3.0


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("before", [True, False])
def test_schedulers_neither_warn_nor_miss_a_skipped_step(level, before):
    model = Weights(1.0)
    optimizer = SGD(model.parameters(), 0.1)
    scheduler = StepLR(optimizer, 1) if before else None
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    scheduler = scheduler or StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        overflow(model, optimizer)
        scheduler.step()
        backward(model(torch.tensor(1.0)), optimizer)
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_group_can_be_added(level):
    first, second = Weights(1.0), Weights(1.0)
    optimizer = SGD(first.parameters(), 0.5)
    [first, second], optimizer = amp.initialize(
        [first, second], optimizer, **(SETTINGS | {"opt_level": level})
    )
    optimizer.add_param_group({"params": second.parameters(), "lr": 0.25})
    backward(first(torch.tensor(1.0)) + second(torch.tensor(1.0)), optimizer)
    optimizer.step()
    assert (first.weight.item(), second.weight.item()) == (0.5, 0.75)
    assert len(list(amp.master_params(optimizer))) == 2
    assert {p.dtype for p in amp.master_params(optimizer)} == {
        torch.float16 if level == "O3" else torch.float32
    }


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_double_parameters_are_refused_at_the_first_backward(level):
    model = Weights(1.0).double()
    model, optimizer = o2(model, opt_level=level, cast_model_type=False)
    with pytest.raises(TypeError, match=r"must be either torch.cuda.FloatTensor or.*DoubleTensor"):
        backward(model(torch.tensor(1.0)), optimizer)


def test_bf16_models_train_with_masters():
    model, optimizer = o2(Weights(1.0), cast_model_type=torch.bfloat16)
    for _ in range(8):
        optimizer.zero_grad()
        backward(model(torch.tensor(2.0**-6)), optimizer)
        optimizer.step()
    assert next(amp.master_params(optimizer)).item() == pytest.approx(1 - 8 * 0.1 * 2**-6)
    assert model.weight.dtype == torch.bfloat16
    assert model.weight.item() == pytest.approx(0.9875, abs=2**-8)


def test_shared_and_frozen_weights_keep_their_place():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 1))
    model[1].weight = model[0].weight
    model[2].requires_grad_(requires_grad=False)
    model, optimizer = o2(model)
    frozen = model[2].weight.clone()
    backward(model(torch.ones(1, 2)).sum(), optimizer)
    optimizer.step()
    assert model[1].weight is model[0].weight
    assert torch.equal(model[2].weight, frozen)
    assert model.state_dict()["0.weight"].dtype == torch.float32


def train(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        backward(model(x).float().pow(2).mean(), optimizer)
        optimizer.step()


def saved(*parts):
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("order", ["initialize first", "load first", "optimizer first"])
def test_a_resumed_run_is_bitwise_the_same(level, order):
    batches = [batch() for _ in range(6)]
    make = partial(SGD, momentum=0.5) if level == "O3" else Adam  # Adam in fp16 divides by zero
    torch.manual_seed(1)
    whole = Net()
    start = copy.deepcopy(whole.state_dict())
    whole, optimizer = o2(whole, make=make, opt_level=level, max_loss_scale=64.0)
    train(whole, optimizer, batches)

    model = Net()
    model.load_state_dict(start)
    model, optimizer = o2(model, make=make, opt_level=level, max_loss_scale=64.0)
    train(model, optimizer, batches[:3])
    model_state, optimizer_state, amp_state = saved(model, optimizer, amp)

    model = Net()
    optimizer = make(model.parameters(), 0.1)
    options = {"opt_level": level, "verbosity": 0, "max_loss_scale": 64.0}
    if order == "load first":
        model.load_state_dict(model_state)
        optimizer.load_state_dict(optimizer_state)
        amp.initialize(model, optimizer, **options)
    else:
        amp.initialize(model, optimizer, **options)
        parts = [(model, model_state), (optimizer, optimizer_state)]
        for part, state in parts if order == "initialize first" else parts[::-1]:
            part.load_state_dict(state)
    amp.load_state_dict(amp_state)
    train(model, optimizer, batches[3:])
    expected = whole.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_an_old_checkpoint_of_rounded_weights_loads():
    model, optimizer = o2(Weights(1.0))
    backward(model(torch.tensor(1.0)), optimizer)
    optimizer.step()
    model.load_state_dict({"weight": torch.tensor([0.25])})  # masters were never in it
    optimizer.load_state_dict({"state": {}, "param_groups": optimizer.state_dict()["param_groups"]})
    assert next(amp.master_params(optimizer)).item() == 0.25
    optimizer.step()
    assert model.weight.item() == 0.25


def test_masters_saved_by_the_program_can_be_put_back_by_hand():
    model, optimizer = o2(Weights(1.0))
    optimizer._lazy_init_maybe_master_weights()
    optimizer._amp_stash.lazy_init_called = True
    for param, value in zip(amp.master_params(optimizer), [torch.tensor([1 / 3])], strict=True):
        param.data.copy_(value)
    optimizer.step()
    assert model.weight.item() == torch.tensor(1 / 3).half().item()
    assert next(amp.master_params(optimizer)).item() == torch.tensor(1 / 3).item()
