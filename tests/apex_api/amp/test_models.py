"""Formats of weights, inputs, outputs and state dicts under each level."""

import copy
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from halfstep.apex import amp

from .tiny import Net, Weights, backward, batch


class Pair(NamedTuple):
    first: Any
    second: Any


def formats(model):
    return {name: tensor.dtype for name, tensor in model.state_dict(keep_vars=True).items()}


def weights(level, **options):
    model = amp.initialize(Net(), opt_level=level, verbosity=0, **options)
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor.dtype for name, tensor in tensors if tensor.is_floating_point()}


AFFINE_BN = {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}


@pytest.mark.parametrize("level", ["O0", "O1"])
def test_weights_stay_single_under_o0_and_o1(level):
    assert set(weights(level).values()) == {torch.float32}


@pytest.mark.parametrize(
    ("level", "options", "dtype", "kept"),
    [
        ("O2", {}, torch.float16, AFFINE_BN),
        ("O2", {"keep_batchnorm_fp32": "False"}, torch.float16, set()),
        ("O3", {}, torch.float16, set()),
        ("O3", {"keep_batchnorm_fp32": True}, torch.float16, AFFINE_BN),
        ("O2", {"cast_model_type": torch.bfloat16}, torch.bfloat16, AFFINE_BN),
    ],
)
def test_weights_are_half_but_for_affine_batchnorm(level, options, dtype, kept):
    found = weights(level, **options)
    assert {name for name, each in found.items() if each == torch.float32} == kept
    assert {each for name, each in found.items() if name not in kept} == {dtype}


@pytest.mark.parametrize("keep_batchnorm", [True, False])
def test_weights_of_a_recurrent_layer_are_put_together_after_the_cast(keep_batchnorm, monkeypatch):
    seen, model = [], nn.LSTM(2, 2)
    monkeypatch.setattr(
        nn.RNNBase, "flatten_parameters", lambda rnn: seen.append(rnn.weight_hh_l0.dtype)
    )
    amp.initialize(model, opt_level="O3", keep_batchnorm_fp32=keep_batchnorm, verbosity=0)
    assert seen == [torch.float16]


class Records(nn.Module):
    """Keeps what its forward was given and returns what it is told."""

    def __init__(self, output=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.output = output

    def forward(self, *args, **kwargs):
        self.given = args, kwargs
        return args[0] if self.output is None else self.output


class Batch:
    def __init__(self, value):
        self.value = value

    def to(self, dtype):
        return Batch(self.value.to(dtype))


@pytest.mark.parametrize(("level", "dtype"), [("O2", torch.float16), ("O3", torch.float16)])
def test_inputs_are_cast_however_they_are_nested(level, dtype):
    model = amp.initialize(Records(), opt_level=level, verbosity=0)
    x, array = torch.ones(2), np.ones(2)
    ids = torch.tensor([1])
    model(x, [x, (x, ids)], Pair(x, "text"), array, 3, pairs={"a": x}, custom=Batch(x), none=None)
    args, kwargs = model.given
    assert args[0].dtype == args[1][0].dtype == args[1][1][0].dtype == dtype
    assert args[1][1][1] is ids
    assert isinstance(args[2], Pair)
    assert (args[2].first.dtype, args[2].second) == (dtype, "text")
    assert args[3] is array
    assert args[4] == 3
    assert kwargs["pairs"]["a"].dtype == kwargs["custom"].value.dtype == dtype
    assert kwargs["none"] is None
    assert x.dtype == torch.float32


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_outputs_are_single(level):
    half = torch.ones(1).half()
    output = {"logits": half, "more": Pair(half, [half])}
    out = amp.initialize(Records(output), opt_level=level, verbosity=0)(half)
    assert out["logits"].dtype == torch.float32
    assert isinstance(out["more"], Pair)
    assert out["more"].first.dtype == out["more"].second[0].dtype == torch.float32


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_outputs_take_the_format_asked_for(level):
    model = amp.initialize(Net(), opt_level=level, verbosity=0, cast_model_outputs=torch.float16)
    assert model(batch()).dtype == torch.float16
    assert model.forward(batch()).dtype == torch.float16


def test_cast_model_type_false_leaves_the_model():
    model = amp.initialize(Records(), opt_level="O2", cast_model_type=False, verbosity=0)
    half = torch.ones(1).half()
    assert model(half) is half
    assert model.weight.dtype == torch.float32


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_state_dicts_are_single_and_load_into_a_plain_model(level):
    model = Net()
    model, optimizer = amp.initialize(
        model, SGD(model.parameters(), 0.1), opt_level=level, verbosity=0
    )
    backward(model(batch()).pow(2).mean(), optimizer)
    optimizer.step()
    state = model.state_dict()
    assert {v.dtype for v in state.values() if v.is_floating_point()} == {torch.float32}
    assert {v.dtype for v in model.fc.state_dict().values()} == {torch.float32}
    plain = Net()
    plain.load_state_dict(state)
    torch.testing.assert_close(
        plain.eval()(x := batch()).float(), model.eval()(x).float(), rtol=0.02, atol=0.02
    )


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_deep_copy_runs_its_own_weights(level):
    model = amp.initialize(Weights(2.0), opt_level=level, verbosity=0)
    average = copy.deepcopy(model)
    with torch.no_grad():
        average.weight.fill_(5.0)
    assert average(torch.tensor(1.0)) == 5.0
    assert model(torch.tensor(1.0)) == 2.0
    assert average.state_dict()["weight"] == 5.0
    assert average.state_dict()["weight"].dtype == torch.float32


def test_a_model_can_be_pickled_whole():
    model = amp.initialize(nn.Linear(2, 1), opt_level="O3", verbosity=0)
    loaded = pickle.loads(pickle.dumps(model))
    assert torch.equal(loaded(torch.ones(1, 2)), model(torch.ones(1, 2)))
    with torch.no_grad():
        loaded.bias.fill_(100.0)
    assert loaded(torch.ones(1, 2)) > 50


def test_optimizer_state_follows_the_weights():
    model = Weights(1.0, 2.0)
    optimizer = Adam(model.parameters())
    model(torch.ones(2)).backward()
    optimizer.step()
    amp.initialize(model, optimizer, opt_level="O3", verbosity=0)
    assert optimizer.state[model.weight]["exp_avg"].dtype == torch.float16
