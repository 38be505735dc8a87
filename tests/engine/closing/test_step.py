"""A step that is skipped leaves everything as before it, on every optimizer."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import MultiStepLR

from engine.tiny import differences, digits_net, mlp, with_infinite_gradient
from halfstep.engine import EMA, Engine
from halfstep.recipe import RECIPES

OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.05, momentum=0.9),
    "sgd-fused": partial(SGD, lr=0.05, momentum=0.9, fused=True),
    "sgd-fused-dampened": partial(SGD, lr=0.05, momentum=0.9, dampening=0.5, fused=True),
    "adam": partial(Adam, lr=1e-2),
    "adam-fused": partial(Adam, lr=1e-2, fused=True),
    "adamw-fused": partial(AdamW, lr=1e-2, fused=True),
    "adagrad-fused": partial(Adagrad, lr=1e-2, fused=True),
    "rmsprop": partial(RMSprop, lr=1e-3),
}


def snapshot(engine: Engine) -> dict[str, Any]:
    state = engine.state_dict()
    del state["scales"], state["steps"], state["skipped"]
    for optimizer in state["optimizers"]:
        # Fused optimizers allocate zeros before the device knows; they mean what no state means.
        optimizer["state"] = {
            (index, name): value
            for index, entry in optimizer["state"].items()
            for name, value in entry.items()
            if value is not None and value.any()
        }
    return copy.deepcopy({"model": engine.model.state_dict(), **state})


def take_step(engine: Engine, batch: Any, *, overflow: bool = False) -> Any:
    images, labels = batch
    with engine.autocast():
        # Infinite inputs poison batch statistics, as an overflow in a forward pass does.
        loss = cross_entropy(engine.model(images * (1e30 if overflow else 1)), labels)
    engine.backward(loss)
    return engine.step()


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("recipe", ["fp16", "o2"])
def test_skipped_step_leaves_nothing_behind(digits, recipe: str, build) -> None:
    batches = digits.batches(8, 6)
    model = digits_net()
    optimizer = build(model.parameters())
    scheduler = MultiStepLR(optimizer, [2, 4])
    with Engine(
        model,
        optimizer,
        recipe={"base": recipe, "loss_scale": 256},
        scheduler=scheduler,
        average=EMA(0.5),
    ) as engine:
        for place, batch in enumerate(batches):
            before = snapshot(engine)
            overflow = place in {0, 3}
            result = take_step(engine, batch, overflow=overflow)
            assert result.skipped is overflow
            assert result.stepped is not overflow
            assert bool(differences(snapshot(engine), before)) is not overflow
        assert engine.skipped == 2
        assert engine.steps == 6
        assert scheduler.last_epoch == 4


@pytest.mark.parametrize("build", ["sgd-fused", "sgd-fused-dampened", "adamw-fused"])
def test_fused_equals_unfused_after_a_first_step_that_overflows(digits, build: str) -> None:
    def train(fused: bool) -> dict[str, torch.Tensor]:
        model = digits_net()
        optimizer = partial(OPTIMIZERS[build], fused=fused)(model.parameters())
        with Engine(model, optimizer, recipe={"base": "fp16", "loss_scale": 256}) as engine:
            for place, batch in enumerate(digits.batches(8, 4)):
                take_step(engine, batch, overflow=place == 0)
        return model.state_dict()

    with_nan_in_fresh_memory(lambda: compare(train(fused=True), train(fused=False)))


def compare(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-4, atol=1e-6)


def with_nan_in_fresh_memory(run: Any) -> Any:
    torch.use_deterministic_algorithms(mode=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        return run()
    finally:
        torch.use_deterministic_algorithms(mode=False)


def test_torch_itself_takes_uninitialised_memory_for_momentum() -> None:
    """The bug that the engine guards against; once torch mends it, the guard may go."""

    def plain_loop() -> torch.Tensor:
        weight = nn.Parameter(torch.ones(3))
        optimizer = SGD([weight], lr=0.1, momentum=0.9, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return weight.detach()

    assert with_nan_in_fresh_memory(plain_loop).isnan().all()


def test_an_optimizer_without_gradients_stays_as_it_is() -> None:
    used, unused = mlp(0), mlp(1)
    optimizers = [SGD(net.parameters(), lr=0.1) for net in (used, unused)]
    before = copy.deepcopy(unused.state_dict())
    schedulers = [MultiStepLR(optimizer, [1]) for optimizer in optimizers]
    with Engine([used, unused], optimizers, recipe="fp16", scheduler=schedulers) as engine:
        for _ in range(2):
            with engine.autocast():
                loss = used(torch.ones(2, 6)).float().mean()
            engine.backward(loss)
            result = engine.step()
        engine.flush()
    assert result[0].stepped
    assert result[1].closed
    assert not (result[1].stepped)
    assert not (result[1].skipped)
    assert not (result[1].has_gradients)
    assert result[1].grad_norm is None
    assert not differences(unused.state_dict(), before)
    assert [scheduler.last_epoch for scheduler in schedulers] == [2, 0]


@pytest.mark.parametrize("recipe", ["half", "o2", "fp16", "bf16-true"])
def test_a_true_norm_beyond_fp16_is_clipped_and_not_lost(recipe: str) -> None:
    """10,000 gradients of 948.68 have a norm of 94,868, beyond the 65,504 of fp16."""
    model = nn.Linear(1, 10_000, bias=False)
    nn.init.zeros_(model.weight)
    settings = {"base": recipe}
    if RECIPES[recipe][0].loss_scale:
        settings["loss_scale"] = 1.0
    with Engine(model, SGD(model.parameters(), lr=1.0), recipe=settings, clip_norm=100.0) as engine:
        with engine.autocast():
            loss = engine.model(torch.ones(1, 1)).float().sum() * 948.68
        engine.backward(loss)
        result = engine.step()
        moved = engine.model.state_dict()["weight"].norm()
    assert result.grad_norm == pytest.approx(94_868, rel=2e-3)
    assert float(moved) == pytest.approx(100, rel=3e-3)


def test_a_true_gradient_below_fp16_survives_unscaling() -> None:
    """1e-8 is lost in fp16, whose smallest number is 6e-8; times 2**15 it is not."""
    model = nn.Linear(1, 1, bias=False)
    recipe = {"params": "fp16", "loss_scale": 2.0**15}
    with Engine(model, SGD(model.parameters(), lr=1.0), recipe=recipe) as engine:
        engine.backward(engine.model(torch.ones(1, 1)).float().sum() * 1e-8)
        assert engine.step().grad_norm == pytest.approx(1e-8, rel=2e-3)


@pytest.mark.parametrize("recipe", ["half", "bf16-true"])
def test_half_gradients_of_a_window_are_added_up_in_fp32(recipe: str) -> None:
    """1 + 256 times 2**-12 is 1.0625; in a half format each addition would be lost."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    with Engine(
        model, SGD(model.parameters(), lr=1.0), recipe=recipe, accumulate=257, clip_norm=1e9
    ) as engine:
        for gradient in [1.0] + [2.0**-12] * 256:
            engine.backward(engine.model(torch.ones(1, 1)).float().sum() * gradient * 257)
            result = engine.step()
    assert result.grad_norm == pytest.approx(1.0625, rel=1e-3)
    assert float(model.weight.detach()) == pytest.approx(-1.0625, rel=1e-2)


def test_only_the_optimizer_with_a_bad_gradient_skips_when_models_are_shared() -> None:
    """Two optimizers on one model: the statistics of its norm layers go back with either."""
    model = mlp(norm=True)
    optimizers = [SGD(model[:2].parameters(), lr=0.1), SGD(model[3:].parameters(), lr=0.1)]
    before = copy.deepcopy(model.state_dict())
    with Engine(model, optimizers, recipe="fp16") as engine:
        with engine.autocast():
            hidden = model[:3](torch.randn(4, 6))
            loss = model[3](with_infinite_gradient(hidden)).float().mean()
        engine.backward(loss)
        result = engine.step()
    assert [each.stepped for each in result.optimizers] == [False, True]
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"3.weight", "3.bias"}
