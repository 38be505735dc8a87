"""Non-finite gradients under recipes without a loss scale: skipped, raised or applied."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import ExponentialLR, MultiStepLR

from engine.tiny import differences, mlp, through_a_file, with_infinite_gradient
from halfstep import Recipe, recipes
from halfstep import recipe as find_recipe
from halfstep.engine import EMA, Engine, EngineWarning, NonFiniteGradients, StepResult

UNSCALED = [name for name in recipes() if find_recipe(name).scaling is None]
OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.05, momentum=0.9),
    "adam, fused": partial(Adam, lr=1e-2, fused=True, eps=1e-4),
    "rmsprop": partial(RMSprop, lr=1e-3, eps=1e-4),
    "adagrad": partial(Adagrad, lr=1e-2, eps=1e-4),
}
INPUTS = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


def take_step(engine: Engine, *, bad: bool = False, forward: bool = True) -> StepResult:
    """Take a step; if `bad`, its gradients are not finite, nor its activations if `forward`."""
    with engine.autocast():
        output = engine.models[0](INPUTS * (math.inf if bad and forward else 1))
        if bad and not forward:
            output = with_infinite_gradient(output)
        loss = output.float().square().mean()
    engine.backward(loss)
    return engine.step()


def snapshot(engine: Engine) -> dict[str, Any]:
    state = engine.state_dict()
    del state["steps"], state["skipped"]
    state["techniques"].pop("CompressedActivations", None)  # counts forward passes
    for optimizer in state["optimizers"]:  # fused kernels allocate zeros before the device knows
        optimizer["state"] = {
            (index, name): value
            for index, entry in optimizer["state"].items()
            for name, value in entry.items()
            if value is not None and value.any()
        }
    return copy.deepcopy({"model": engine.model.state_dict(), **state})


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("name", UNSCALED)
def test_a_step_is_skipped_as_if_it_had_not_been(name: str, general: bool) -> None:
    model = mlp(norm=True)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = MultiStepLR(optimizer, [2, 4])
    with Engine(model, optimizer, recipe=name, scheduler=scheduler, clip_norm=1.0) as engine:
        if general:
            engine._plain = None
        for place in range(6):
            before, bad = snapshot(engine), place in {0, 3}
            result = take_step(engine, bad=bad, forward=place == 0)
            assert (result.skipped, result.found_inf, result.stepped) == (bad, bad, not bad)
            assert bool(differences(snapshot(engine), before)) is not bad
        assert (engine.skipped, engine.steps, scheduler.last_epoch) == (2, 6, 4)


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("recipe", ["fp32", "half"])
def test_every_optimizer_and_average_stays_as_before(recipe: str, build) -> None:
    model = mlp(norm=True)
    optimizer = build(model.parameters())
    with Engine(model, optimizer, recipe=recipe, average=EMA(0.5)) as engine:
        for place in range(4):
            before, bad = snapshot(engine), place in {0, 2}
            assert take_step(engine, bad=bad).skipped is bad
            assert bool(differences(snapshot(engine), before)) is not bad


def test_one_bad_micro_batch_skips_the_step_of_its_window() -> None:
    model = mlp(norm=True)
    with Engine(model, SGD(model.parameters(), lr=0.1), accumulate=3) as engine:
        before = copy.deepcopy(model.state_dict())
        results = [take_step(engine, bad=place == 1) for place in range(3)]
        assert [result.closed for result in results] == [False, False, True]
        assert results[-1].skipped
        assert not differences(dict(model.state_dict()), dict(before))
        for _ in range(3):
            result = take_step(engine)
        assert result.stepped
        assert int(model[1].num_batches_tracked) == 3


def test_each_optimizer_decides_by_its_own_gradients() -> None:
    models = [mlp(0), mlp(1)]
    optimizers = [AdamW(model.parameters(), lr=0.1) for model in models]
    schedulers = [ExponentialLR(optimizer, 0.5) for optimizer in optimizers]
    with Engine(models, optimizers, scheduler=schedulers) as engine:
        before = copy.deepcopy(models[0].state_dict())
        engine.backward(with_infinite_gradient(models[0](INPUTS)).mean() + models[1](INPUTS).mean())
        result = engine.step()
        engine.flush()
        assert [each.skipped for each in result.optimizers] == [True, False]
        assert [each.stepped for each in result.optimizers] == [False, True]
        assert [each.last_epoch for each in schedulers] == [0, 1]
        assert not differences(dict(models[0].state_dict()), dict(before))
        assert engine.skipped == 1


@pytest.mark.parametrize(
    ("dtype", "large"), [(torch.float32, 3e38), (torch.float16, 6e4), (torch.float64, 1e300)]
)
def test_large_gradients_are_finite_though_their_norm_is_not(dtype, large: float) -> None:
    weight = nn.Parameter(torch.zeros(100, dtype=dtype))
    layer = nn.Module()
    layer.weight = weight
    # A recipe without fields leaves the format of the parameter as it is.
    with Engine(layer, SGD([weight], lr=0.5), recipe=Recipe(name="own")) as engine:
        engine.backward((weight.double() * large).sum())
        assert engine.step().stepped
    assert weight.dtype == dtype
    assert float(weight.detach()[0]) == pytest.approx(-0.5 * large, rel=1e-3)


def test_complex_and_sparse_gradients_are_checked() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    model.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with Engine(model, SGD(model.parameters(), lr=0.1)) as engine:
        for sparse, turned in ((1.0, 1.0), (math.inf, 1.0), (1.0, math.inf)):
            before = copy.deepcopy(model.state_dict())
            loss = (model(torch.tensor([1, 1, 3])) * sparse).sum()
            engine.backward(loss + (model.turn.imag * turned).sum())
            bad = math.inf in {sparse, turned}
            assert engine.step().skipped is bad
            assert bool(differences(dict(model.state_dict()), dict(before))) is not bad


@pytest.mark.parametrize("general", [False, True])
def test_raise_names_the_step_and_the_parameters_and_updates_nothing(general: bool) -> None:
    model = mlp(norm=True)
    optimizer = AdamW(model.parameters(), lr=0.1, fused=True)
    scheduler = ExponentialLR(optimizer, 0.5)
    with Engine(model, optimizer, nonfinite="raise", scheduler=scheduler) as engine:
        if general:
            engine._plain = None
        assert take_step(engine).stepped
        before = snapshot(engine)
        with engine.autocast():
            output = model(INPUTS)
        engine.backward((output + model[3].weight.sum() * math.inf).mean())
        with pytest.raises(NonFiniteGradients, match=r"at step 2: 3\.weight") as caught:
            engine.step()
        assert (caught.value.step, caught.value.parameters) == (2, ("3.weight",))
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        assert "\n" not in str(caught.value)
        assert not differences(snapshot(engine), before)
        assert take_step(engine).stepped
        assert (engine.steps, engine.skipped) == (2, 0)


def test_apply_gives_the_optimizer_what_there_is() -> None:
    model = mlp(norm=True)
    with Engine(model, SGD(model.parameters(), lr=0.1), nonfinite="apply") as engine:
        result = take_step(engine, bad=True)
        assert (result.found_inf, result.skipped, result.stepped) == (False, False, True)
        assert bool(model[0].weight.isnan().any())
        assert engine.skipped == 0


@pytest.mark.parametrize("policy", ["skip", "raise", "apply"])
def test_a_loss_scale_skips_under_every_policy(policy: str) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with Engine(model, optimizer, recipe="fp16", nonfinite=policy) as engine:
        assert take_step(engine, bad=True).skipped
        assert engine.loss_scale == 2.0**15


def test_another_policy_is_refused() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"nonfinite is 'ignore'; allowed: 'skip', 'raise' or 'a"):
        Engine(model, optimizer, nonfinite="ignore")
    assert take_step(Engine(model, optimizer)).stepped, "the model and the optimizer are free"


def test_gradients_that_an_optimizer_computes_itself_are_not_checked() -> None:
    model = nn.Linear(2, 1)
    with Engine(model, LBFGS(model.parameters(), max_iter=1)) as engine:

        def closure() -> float:
            engine.zero_grad()
            loss = model(torch.ones(1, 2)).square().sum()
            engine.backward(loss)
            return float(loss.detach())

        assert engine.step(closure=closure).stepped
        assert not engine.step(closure=closure).found_inf


def warned(engine: Engine, bad: list[bool], forward: bool = False) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in bad:
            take_step(engine, bad=each, forward=forward)
        engine.flush()
    assert all(issubclass(each.category, EngineWarning) for each in caught)
    assert all(each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("general", [False, True])
def test_the_third_skip_in_a_row_is_said_once(general: bool, fused: bool) -> None:
    model = mlp()
    with Engine(model, AdamW(model.parameters(), lr=0.01, fused=fused)) as engine:
        if general:
            engine._plain = None
        assert not warned(engine, [True, True, False, True, True, False])
        (said,) = warned(engine, [True] * 5 + [False])
        assert said.startswith(
            "AdamW has skipped 3 steps in a row, up to step 9, because gradients"
        )
        assert "(in 0.weight, 0.bias, 2.weight, 2.bias)" in said
        assert "write nonfinite='raise'" in said
        assert "\n" not in said
        assert len(warned(engine, [True] * 4)) == 1


def test_weights_that_are_the_cause_are_named() -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=0.1)) as engine:
        with torch.no_grad():
            model[2].bias.fill_(math.nan)
        (said,) = warned(engine, [False] * 3)
    assert "the weights are inf or NaN too (in 2.bias), so all later steps will be skipped" in said


@pytest.mark.parametrize("scale", ["dynamic", 64.0])
def test_the_skips_of_a_loss_scale_are_no_warning(scale: Any) -> None:
    model = mlp()
    recipe = {"base": "fp16", "loss_scale": scale}
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe) as engine:
        assert not warned(engine, [True] * 6)


def test_a_state_carries_the_count_and_the_statistics_of_an_open_window() -> None:
    def start(policy: str) -> Engine:
        model = mlp(norm=True)
        return Engine(
            model, SGD(model.parameters(), lr=0.1), accumulate=2, nonfinite=policy, recipe="bf16"
        )

    with start("skip") as engine:
        for bad in (False, True):
            take_step(engine, bad=bad)
        before = copy.deepcopy(dict(engine.model.state_dict()))
        take_step(engine, bad=True)
        saved = through_a_file([engine.model.state_dict(), engine.state_dict()])
    for policy in ("skip", "apply"):
        with start(policy) as engine:
            engine.model.load_state_dict(saved[0])
            engine.load_state_dict(saved[1])
            assert engine.skipped == 1
            result = take_step(engine)
            assert result.skipped is (policy == "skip")
            after = dict(engine.model.state_dict())
            assert bool(differences(after, before)) is (policy == "apply")
            back = through_a_file(engine.state_dict())
        with start("skip") as engine:
            engine.load_state_dict(back)
            assert engine.skipped == 1 + (policy == "skip")
