"""Half recipes on a CPU through the engine: kernels and policy, on and given back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from halfstep.engine import Engine
from halfstep.kernels import cuda_policy
from halfstep.kernels.products import ON


def engine_for(recipe):
    model = nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1))
    return Engine(model, torch.optim.SGD(model.parameters(), 0.1), recipe=recipe)


def registered():
    return ON["cpu"].registered, cuda_policy._overrides.registered


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("fp32", (False, False)),
        ("fp16", (True, True)),
        ("bf16", (True, True)),
        ("half", (True, False)),
        ("o2", (True, False)),
    ],
)
def test_half_recipes_hold_what_they_need_until_closed(recipe, expected):
    with engine_for(recipe):
        assert registered() == expected
    assert registered() == (False, False)


def test_two_engines_give_back_at_the_last_close():
    first, second = engine_for("fp16"), engine_for("fp16")
    first.close()
    first.close()
    assert registered() == (True, True)
    second.close()
    assert registered() == (False, False)


def test_an_engine_that_fails_to_start_gives_back():
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError):
        Engine(model, torch.optim.LBFGS(model.parameters()), recipe="fp16")
    assert registered() == (False, False)


def test_softmax_is_single_under_autocast_as_on_a_gpu():
    with engine_for("fp16") as engine, engine.autocast():
        assert engine.model[0](torch.ones(2, 8)).dtype == torch.float16
        assert engine.model(torch.ones(2, 8)).dtype == torch.float32
