"""An engine's state: plain, exact, and honest about what another recipe cannot take over."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import MultiStepLR

from halfstep.engine import EMA, SWA, Engine, EngineWarning, StepResult

from .tiny import differences, mlp, through_a_file

INPUTS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def micro_step(engine: Engine, place: int, *, step: bool = True) -> None:
    with engine.autocast():
        output = engine.model(INPUTS + place)
    loss_id = "own" if place % 2 else None
    engine.backward(output.float().square().mean(), loss_id=loss_id)
    if step:
        engine.step()


def whole(engine: Engine) -> Any:
    return {"engine": engine.state_dict(), "model": engine.model.state_dict()}


@pytest.mark.parametrize("stop", [3, 4, 5, 6])
@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize(
    ("recipe", "build"),
    [
        ("fp16", partial(SGD, lr=0.1, momentum=0.9, fused=True)),
        ("o2", partial(AdamW, lr=0.01)),
        ("bf16-kahan", partial(Adam, lr=0.01)),
    ],
)
def test_everything_goes_on_bitwise_wherever_it_stopped(recipe, build, stop, pending) -> None:
    """Batch norm, scheduler, average, own scales, a backward whose step has not come yet."""

    def start() -> Engine:
        model = mlp(norm=True)
        optimizer = build(model.parameters())
        return Engine(
            model,
            optimizer,
            recipe=recipe if recipe == "bf16-kahan" else {"base": recipe, "loss_scale": 64},
            accumulate=3,
            clip_norm=1.0,
            scheduler=MultiStepLR(optimizer, [1, 2]),
            average=EMA(0.9),
        )

    with start() as engine:
        for place in range(stop):
            micro_step(engine, place, step=not pending or place < stop - 1)
        saved = through_a_file(whole(engine))
        if pending:
            engine.step()
        for place in range(stop, 10):
            micro_step(engine, place)
        went_on = through_a_file(whole(engine))
    with start() as engine:
        micro_step(engine, 0)
        engine.load_state_dict(saved["engine"])
        engine.model.load_state_dict(saved["model"])
        if pending:
            engine.step()
        for place in range(stop, 10):
            micro_step(engine, place)
        assert not differences(whole(engine), went_on)


def test_a_state_does_not_change_as_the_window_goes_on() -> None:
    model = mlp(norm=True)
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16", accumulate=4) as engine:
        micro_step(engine, 0)
        micro_step(engine, 1)
        state = engine.state_dict()
        kept = through_a_file(state)
        micro_step(engine, 2)
        micro_step(engine, 3, step=False)
        assert not differences(state["windows"], kept["windows"])
        assert not differences(state["statistics"], kept["statistics"])


@pytest.mark.parametrize(
    ("first", "second"),
    [("fp16", "bf16"), ("bf16", "fp16"), ("o2", "fp16"), ("fp16", "o0")],
)
def test_a_run_may_go_on_under_another_recipe(first: str, second: str) -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=0.1, momentum=0.9), recipe=first) as engine:
        for place in (0, 2, 4):
            micro_step(engine, place)
        saved = through_a_file(whole(engine))
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=0.1, momentum=0.9), recipe=second) as engine:
        model.load_state_dict(saved["model"])
        said = rf"under recipe '{first}' and is loaded under '{second}' \(\w+"
        with pytest.warns(EngineWarning, match=said):
            engine.load_state_dict(saved["engine"])
        assert engine.steps == 3
        assert engine.loss_scale == (2.0**16 if second == "fp16" else 1.0)
        momentum = engine.optimizer.state_dict()["state"]
        assert not differences(momentum, saved["engine"]["optimizers"][0]["state"])
        micro_step(engine, 0)
        assert engine.steps == 4


def test_a_half_filled_window_of_another_recipe_is_dropped_aloud() -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16", accumulate=2) as engine:
        micro_step(engine, 0)
        saved = engine.state_dict()
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="bf16", accumulate=2) as engine:
        with pytest.warns(EngineWarning, match="a partly filled window is dropped"):
            engine.load_state_dict(saved)
        assert all(param.grad is None for param in model.parameters())
        micro_step(engine, 0)
        assert not engine.steps


def test_a_changed_setting_of_the_same_name_is_another_recipe() -> None:
    model = mlp()
    recipe = {"base": "fp16", "loss_scale": 128}
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe) as engine:
        micro_step(engine, 0)
        saved = engine.state_dict()
    recipe = {"base": "fp16", "loss_scale": 1024}
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe) as engine:
        with pytest.warns(EngineWarning, match="the loss scale restarts"):
            engine.load_state_dict(saved)
        assert engine.loss_scale == 1024


def test_a_state_of_another_shape_is_refused() -> None:
    models = [mlp(0), mlp(1)]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    with Engine(models, optimizers) as engine:
        saved = engine.state_dict()
    with (
        Engine(models[0], optimizers[0], average=SWA()) as engine,
        pytest.raises(ValueError, match="the state has 2 optimizers, this engine 1"),
    ):
        engine.load_state_dict(saved)


@pytest.mark.parametrize("recipe", ["o2", "bf16-true", "bf16-sr", "bf16-kahan"])
def test_an_optimizer_that_trained_before_goes_on(recipe: str) -> None:
    """Its state takes the format that the recipe keeps state in, and its value."""
    model = mlp()
    optimizer = AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(INPUTS).square().mean().backward()
        optimizer.step()
    moments = [optimizer.state[p]["exp_avg_sq"].clone() for p in model.parameters()]
    with Engine(model, optimizer, recipe=recipe) as engine:
        held = optimizer.param_groups[0]["params"]
        wanted = torch.bfloat16 if recipe == "bf16-true" else torch.float32
        for param, before in zip(held, moments, strict=True):
            now = optimizer.state[param]["exp_avg_sq"]
            assert now.dtype == wanted
            torch.testing.assert_close(now, before.to(wanted))
        loss = engine.model(INPUTS).float().square().mean()
        engine.backward(loss)
        assert engine.step().stepped
        assert int(optimizer.state[held[0]]["step"]) == 4


def test_sparse_gradients_of_a_window_are_saved() -> None:
    def start() -> Engine:
        torch.manual_seed(0)
        model = nn.Embedding(5, 3, sparse=True)
        return Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16", accumulate=2)

    def micro_step_on(engine: Engine, tokens: list[int]) -> StepResult:
        engine.backward(engine.model(torch.tensor(tokens)).square().sum())
        return engine.step()

    with start() as engine, start() as resumed:
        micro_step_on(engine, [1, 2])
        resumed.load_state_dict(through_a_file(engine.state_dict()))
        for each in (engine, resumed):
            assert micro_step_on(each, [2, 3]).stepped
        assert torch.equal(engine.model.weight, resumed.model.weight)


def without(state: dict[str, Any], *path: Any) -> dict[str, Any]:
    """Return a state without the entry at a path."""
    *parents, name = path
    found = state = through_a_file(state)
    for each in parents:
        found = found[each]
    del found[name]
    return state


WRONG = {
    "nothing": (
        lambda _: {},
        "lacks recipe, settings, accumulate, .*, techniques; load",
    ),
    "no mapping": (lambda _: None, "is a NoneType; load what engine"),
    "a list": (lambda state: [state], "is a list; load what engine"),
    "of the model": (lambda _: mlp().state_dict(), r"lacks .* \(it has '0\.weight', '0\.bias', "),
    "of the optimizer": (
        lambda state: state["optimizers"][0],
        r"lacks recipe, .* \(it has 'state', 'param_groups'\); load what engine\.state",
    ),
    "a whole checkpoint": (lambda state: {"engine": state}, r"lacks .* \(it has 'engine'\)"),
    "one part": (
        lambda state: without(state, "steps"),
        r"^the state of an engine lacks steps; ",
    ),
    "two parts": (
        lambda state: without(without(state, "scales"), "windows"),
        "^the state of an engine lacks scales, windows; load",
    ),
    "in a window": (
        lambda state: without(state, "windows", 0, "grads"),
        r"^windows\[0\] in the state of an engine lacks grads; load",
    ),
    "in an optimizer": (
        lambda state: without(state, "optimizers", 0, "param_groups"),
        r"^optimizers\[0\] in the state of an engine lacks param_groups; load",
    ),
    "in an average": (lambda state: without(state, "averages", 0, "taken"), r"lacks taken; load"),
    "the scales": (lambda state: without(state, "scales", "scalers"), "lacks scalers; load"),
    "a number": (lambda state: {**state, "skipped": "3"}, "has '3' as skipped, which no engine "),
    "a truth": (lambda state: {**state, "steps": True}, "has True as steps, which no engine saves"),
    "a dict": (lambda state: {**state, "optimizers": {}}, "has {} as optimizers, which no engine"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_state_of_something_else_is_refused_in_a_line_and_nothing_is_loaded(name: str) -> None:
    change, said = WRONG[name]
    model = mlp()
    optimizer = AdamW(model.parameters(), lr=0.01)
    with Engine(model, optimizer, recipe="fp16", average=EMA(0.9)) as engine:
        micro_step(engine, 0)
        before = through_a_file(engine.state_dict())
        micro_step(engine, 1)
        now = through_a_file(engine.state_dict())
        with pytest.raises(ValueError, match=said) as caught:
            engine.load_state_dict(change(before))
        assert "\n" not in str(caught.value)
        assert not differences(engine.state_dict(), now)
