"""What `initialize` takes, returns and refuses."""

import gc

import pytest
import torch
from torch import nn
from torch.optim import SGD

from halfstep.apex import amp
from halfstep.apex.fp16_utils import FP16_Optimizer
from halfstep.kernels.products import ON

from .tiny import Net, Weights, backward, batch, scale


def sgd(*models):
    return SGD([p for model in models for p in model.parameters()], 0.1)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_returns_are_lists_where_arguments_were(level):
    one, two = Net(), Net()
    first, second = sgd(one), sgd(two)
    models, optimizers = amp.initialize([one, two], [first, second], opt_level=level)
    assert models == [one, two]
    assert optimizers == [first, second]
    model = Net()
    assert amp.initialize(model, opt_level=level) is model
    assert amp.initialize([model_ := Net()], opt_level=level) == [model_]
    model, optimizer = Net(), None
    optimizer = sgd(model)
    assert amp.initialize(model, [optimizer], opt_level=level) == (model, [optimizer])
    model = Net()
    optimizer = sgd(model)
    assert amp.initialize([model], optimizer, opt_level=level) == ([model], optimizer)


def test_disabled_touches_nothing():
    model = Net()
    optimizer = sgd(model)
    step = optimizer.step
    assert amp.initialize(model, enabled=False, opt_level="O2") is model
    assert amp.initialize(model, optimizer, enabled=False, opt_level="02") == (model, optimizer)
    assert model.fc.weight.dtype == torch.float32
    assert "forward" not in vars(model)
    assert optimizer.step == step
    loss = model(batch()).sum().half()
    with amp.scale_loss(loss, optimizer) as scaled:
        assert scaled is loss
    assert amp.state_dict() == {}
    amp.load_state_dict({})


@pytest.mark.parametrize(
    ("models", "optimizers", "error", "said"),
    [
        ((Net(),), None, TypeError, "models must be either a single model or a list.*a tuple"),
        ("net", None, TypeError, "models must be either a single model or a list of models"),
        ([Net(), 3], None, TypeError, "models must be either"),
        (Net(), (sgd(Net()),), TypeError, "optimizers must be either a single optimizer or a list"),
        (Net(), "adam", TypeError, "optimizers must be either.*a str"),
        (nn.DataParallel(Net()), None, RuntimeError, "instance of torch.nn.parallel.DataParallel"),
        (Net().half(), None, RuntimeError, "Found param conv.weight with type torch.HalfTensor"),
    ],
)
def test_what_is_not_a_model_or_an_optimizer_is_refused(models, optimizers, error, said):
    with pytest.raises(error, match=said):
        amp.initialize(models, optimizers, opt_level="O2", verbosity=0)
    assert not hasattr(amp._amp_state, "opt_properties")


def test_a_half_buffer_is_refused_unless_allowed():
    model = Weights(1.0)
    model.register_buffer("table", torch.ones(2).half())
    with pytest.raises(RuntimeError, match=r"Found buffer table with type torch.HalfTensor"):
        amp.initialize(model, opt_level="O1")
    amp._amp_state.allow_incoming_model_not_fp32 = True
    assert amp.initialize(model, opt_level="O1") is model


def test_wrapped_half_optimizers_and_used_ones_are_refused():
    model = Net()
    optimizer = sgd(model)
    for given in (FP16_Optimizer(sgd(Net()), verbose=False),):
        with pytest.raises(RuntimeError, match=r"instance of apex.fp16_utils.FP16_Optimizer"):
            amp.initialize(model, given, opt_level="O0")
        with pytest.raises(RuntimeError, match=r"instance of apex.fp16_utils.FP16_Optimizer"):
            amp.initialize(model, [given], opt_level="O0")
    amp.initialize(model, optimizer, opt_level="O0")
    with pytest.raises(RuntimeError, match=r"should only be passed through amp.initialize once"):
        amp.initialize(Net(), optimizer, opt_level="O0")
    clash = sgd(Net())
    clash._prepare_amp_backward = None
    with pytest.raises(RuntimeError, match="already has _prepare_amp_backward defined"):
        amp.initialize(Net(), clash, opt_level="O0")


def test_cudnn_must_be_enabled(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    with pytest.raises(RuntimeError, match=r"requires torch.backends.cudnn.enabled = True"):
        amp.initialize(Net())


def test_options_are_printed_unless_verbosity_is_zero(capsys):
    amp.initialize(Net(), opt_level="O2", loss_scale="128.0")
    printed = capsys.readouterr().out
    assert "Selected optimization level O2:  FP16 training with FP32 batchnorm" in printed
    assert "Defaults for this optimization level are:" in printed
    assert "loss_scale             : dynamic" in printed
    assert "After processing overrides, optimization options are:" in printed
    assert "loss_scale             : 128.0" in printed
    amp.initialize(Net(), opt_level="O2", verbosity=0)
    assert capsys.readouterr().out == ""


def test_there_is_a_loss_scale_for_each_loss_within_its_bounds():
    amp.initialize(Net(), opt_level="O2", num_losses=3, min_loss_scale=4.0, max_loss_scale=2.0**10)
    assert [scale(i) for i in range(3)] == [2.0**10] * 3
    assert amp._amp_state.min_loss_scale == 4.0
    assert amp._amp_state.max_loss_scale == 2.0**10
    amp.initialize(Net(), opt_level="O2")
    assert scale() == 2.0**16
    amp.initialize(Net(), opt_level="O1", loss_scale="32")
    assert scale() == 32.0
    assert not amp._amp_state.loss_scalers[0].dynamic


def test_a_second_initialize_starts_afresh():
    own = torch.matmul
    for _ in range(3):
        model = Net()
        model, optimizer = amp.initialize(model, sgd(model), opt_level="O1", verbosity=0)
        assert torch.matmul.__wrapped__ is own
        backward(model(batch()).pow(2).mean(), optimizer)
        optimizer.step()
        assert all(param.isfinite().all() for param in model.parameters())
    model = amp.initialize(Net(), opt_level="O0", verbosity=0)
    assert torch.matmul is own
    assert model(batch()).dtype == torch.float32


def test_fast_kernels_are_held_as_long_as_a_half_model_lives():
    model = amp.initialize(Net(), opt_level="O3", verbosity=0)
    assert ON["cpu"].registered
    amp.initialize(Net(), opt_level="O0", verbosity=0)
    assert ON["cpu"].registered
    del model
    gc.collect()
    amp.initialize(Net(), opt_level="O0", verbosity=0)
    assert not ON["cpu"].registered
    amp.initialize(Net(), opt_level="O1", verbosity=0)
    assert ON["cpu"].registered
    amp.initialize(Net(), opt_level="O0", verbosity=0)
    assert not ON["cpu"].registered
