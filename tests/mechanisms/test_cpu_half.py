"""Half recipes on a CPU through the engine: kernels and policy, on and given back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import halfstep
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


def test_a_loop_without_an_engine_holds_the_kernels_and_the_policy():
    with halfstep.cpu_half():
        assert registered() == (True, True)
        with torch.autocast("cpu", torch.float16):
            assert torch.ones(2).half().pow(2).dtype == torch.float32
    assert registered() == (False, False)


def test_softmax_is_single_under_autocast_as_on_a_gpu():
    with engine_for("fp16") as engine, engine.autocast():
        assert engine.model[0](torch.ones(2, 8)).dtype == torch.float16
        assert engine.model(torch.ones(2, 8)).dtype == torch.float32


@pytest.mark.parametrize("before", [True, False])
def test_encoders_evaluate_in_half_as_on_a_gpu_until_the_last_close(before):
    torch.backends.mha.set_fastpath_enabled(before)
    try:
        encoder = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        optimizer = torch.optim.SGD(encoder.parameters(), 0.1)
        first = Engine(encoder, optimizer, recipe="fp16")
        second = engine_for("bf16")
        inputs = torch.randn(2, 3, 8)
        with first.evaluating():
            fused = encoder(inputs)
        encoder.eval()
        with first.autocast():
            unfused = encoder(inputs)  # gradients are recorded, which is never fused
        assert torch.equal(fused, unfused)
        first.close()
        assert not torch.backends.mha.get_fastpath_enabled()
        second.close()
        assert torch.backends.mha.get_fastpath_enabled() is before
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
