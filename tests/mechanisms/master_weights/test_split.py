"""Split master weights are fp32, or differ from it by a bounded error."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW, RMSprop

from halfstep import Engine, recipe
from halfstep.kernels.update.reference import exact, split
from halfstep.optim import in_one_kernel

BUILDS = {"sgd": partial(SGD, lr=0.05, momentum=0.9), "adamw": partial(AdamW, lr=0.01)}


def numbers(words: torch.Tensor) -> torch.Tensor:
    """fp32 numbers of given bits, without NaN."""
    value = words.to(torch.int32).view(torch.float32)
    return value[~value.isnan()]


def all_kinds() -> torch.Tensor:
    """Every upper half, with the lower halves around each decision of the rounding."""
    upper = torch.arange(-(2**15), 2**15)[:, None] << 16
    lower = torch.tensor([0, 1, 0x7F, 0x80, 0x81, 0x7F7F, 0x7F80, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    return numbers((upper + lower).flatten())


def test_sixteen_missing_bits_are_fp32():
    value = all_kinds()
    weight, missing = split(value, torch.int16)
    assert torch.equal(exact(weight, missing).view(torch.int32), value.view(torch.int32))


def test_a_weight_is_the_nearest_and_at_a_tie_the_one_away_from_zero():
    value = all_kinds()
    value = value[value.abs() < torch.finfo(torch.bfloat16).max]
    weight = split(value, torch.int16)[0].double()
    away = (value.view(torch.int32) + 0x8000 & -(1 << 16)).view(torch.float32).double()
    towards = (value.view(torch.int32) & -(1 << 16)).view(torch.float32).double()
    assert torch.equal(
        weight, torch.where((away - value).abs() <= (towards - value).abs(), away, towards)
    )


def test_eight_missing_bits_err_by_at_most_a_part_in_2_to_the_16():
    """Over all upper halves and the lower halves between which the error is monotone."""
    value = all_kinds()
    value = value[value.abs() < torch.finfo(torch.bfloat16).max]
    found = exact(*split(value, torch.int8)).double()
    error = (found - value.double()).abs()
    assert (error <= torch.maximum(value.double().abs() * 2.0**-16, torch.tensor(2.0**-142))).all()
    assert torch.equal(exact(*split(found.float(), torch.int8)), found.float())


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=200))
def test_any_number_is_split_as_said(words):
    value = numbers(torch.tensor(words))
    assert torch.equal(exact(*split(value, torch.int16)).view(torch.int32), value.view(torch.int32))
    small = value[value.abs() < 1e38]
    error = (exact(*split(small, torch.int8)).double() - small.double()).abs()
    assert (error <= small.double().abs() * 2.0**-16 + 2.0**-142).all()


@pytest.mark.parametrize("dtype", [torch.int16, torch.int8])
def test_inf_and_nan_stay_what_they_are(dtype):
    value = torch.tensor([torch.inf, -torch.inf, torch.nan])
    weight, missing = split(value, dtype)
    assert weight.float().nan_to_num(5).tolist() == value.nan_to_num(5).tolist()
    assert exact(weight, missing)[2].isnan()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))


def split_recipe(way: str, **settings) -> dict:
    return {"base": "bf16-true", "master_weights": way, **settings}


def train(engine: Engine, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, 6, generator=generator).bfloat16()
        engine.backward(engine.model(inputs).float().square().mean())
        engine.step()


def engine_of(way, build, model=None) -> Engine:
    model = model or net()
    return Engine(model, build(model.parameters()), recipe=split_recipe(way))


@pytest.mark.parametrize("kernel", [False, True], ids=["stand-ins", "kernel"])
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_steps_are_those_of_fp32_masters(monkeypatch, build, kernel):
    """Up to ties, which are rounded to even there, the model's own weights are the same too."""
    monkeypatch.setattr(in_one_kernel, "DEVICES", {"cpu"} if kernel else set())
    engines = {way: engine_of(way, build) for way in (True, "split16", "split8")}
    start = torch.cat([value.flatten() for value in net().state_dict().values()])
    found = {}
    for way, engine in engines.items():
        train(engine, 20)
        assert next(engine.model.parameters()).dtype == torch.bfloat16
        state = engine.model.state_dict()
        assert all(value.dtype == torch.float32 for value in state.values())
        found[way] = torch.cat([value.flatten() for value in state.values()])
    moved = (found[True] - start).norm()
    if kernel:  # its sums have another order of roundings than torch's
        assert (found["split16"] - found[True]).norm() < 1e-3 * moved
    else:
        assert torch.equal(found["split16"], found[True])
    assert (found["split8"] - found[True]).norm() < 0.02 * moved


@pytest.mark.parametrize("way", ["split16", "split8"])
def test_a_checkpoint_and_a_closed_engine_have_the_exact_values(way):
    engine = engine_of(way, BUILDS["adamw"])
    train(engine, 3)
    model, state = copy.deepcopy((engine.model.state_dict(), engine.state_dict()))
    optimizer = copy.deepcopy(engine.optimizers[0].state_dict())
    resumed = engine_of(way, BUILDS["adamw"])
    resumed.model.load_state_dict(model)
    resumed.optimizers[0].load_state_dict(optimizer)
    resumed.load_state_dict(state)
    for each in (engine, resumed):
        train(each, 3, first=3)
    straight, again = engine.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(straight[name], again[name]) for name in straight)
    engine.close()
    closed = engine.model.state_dict()
    assert all(torch.equal(closed[name], straight[name]) for name in straight)
    assert all(param.dtype == torch.float32 for param in engine.model.parameters())


@pytest.mark.parametrize(("way", "extra"), [("split16", 2), ("split8", 1)])
def test_the_missing_bits_take_what_they_should(way, extra):
    engine = engine_of(way, BUILDS["sgd"])
    train(engine, 1)
    (technique,) = (
        state for state in engine.state_dict()["techniques"].values() if "compensations" in state
    )
    for param, missing in zip(engine.model.parameters(), technique["compensations"], strict=True):
        assert missing is None or missing.nbytes == extra * param.numel()


def test_fp16_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="subnormal"):
        recipe({"base": "o3", "master_weights": "split16"})
    with pytest.raises(ValueError, match="leave one of them out"):
        recipe({"base": "bf16-sr", "master_weights": "split8"})


def test_an_unknown_optimizer_is_refused():
    model = net()
    with pytest.raises(TypeError, match=r"master_weights='split16' knows torch\.optim\.SGD"):
        Engine(model, RMSprop(model.parameters()), recipe=split_recipe("split16"))
