"""What follows from steps: schedulers, history, and a collapse that names its cause."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, LinearLR, SequentialLR

from engine.tiny import mlp, with_infinite_gradient
from halfstep.engine import Engine, LossScaleCollapse

INPUTS = torch.ones(4, 6)


def take_step(engine: Engine, *, overflow: bool = False, loss_id: str | None = None):
    with engine.autocast():
        output = engine.model(INPUTS)
        if overflow:
            output = with_infinite_gradient(output)
        loss = output.float().square().mean()
    engine.backward(loss, loss_id=loss_id)
    return engine.step()


def test_scheduler_follows_real_steps() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=1.0)
    scheduler = ExponentialLR(optimizer, 0.5)
    used = []
    with warnings.catch_warnings():
        # torch warns where a scheduler steps before its optimizer, as it does under GradScaler.
        warnings.simplefilter("error")
        with Engine(model, optimizer, recipe="fp16", accumulate=2, scheduler=scheduler) as engine:
            for overflow in (True, False, True, False, False):
                take_step(engine)
                used.append(optimizer.param_groups[0]["lr"])
                take_step(engine, overflow=overflow)
            assert scheduler.last_epoch == 2
            engine.flush()
            engine.flush()
            assert scheduler.last_epoch == 3
    assert used == [1.0, 1.0, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    "build",
    [
        lambda optimizer: ExponentialLR(optimizer, 1.0),
        lambda optimizer: ChainedScheduler([ExponentialLR(optimizer, 0.5)]),
        lambda optimizer: SequentialLR(
            optimizer, [LinearLR(optimizer), ExponentialLR(optimizer, 0.5)], [4]
        ),
    ],
)
def test_a_scheduler_that_the_loop_steps_too_is_refused(build) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=1.0)
    scheduler = build(optimizer)
    with Engine(model, optimizer, scheduler=scheduler) as engine:
        take_step(engine)
        take_step(engine)
        scheduler.step()
        with pytest.raises(RuntimeError, match=r"called directly, but the engine.*delete the line"):
            take_step(engine)
    engine = Engine(model, optimizer, scheduler=scheduler)
    take_step(engine)
    scheduler.step()
    with pytest.raises(RuntimeError, match=r"called directly, but the engine.*delete the line"):
        engine.close()


def test_a_scheduler_that_goes_back_to_a_saved_state_is_not_taken_for_stepped() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=1.0)
    scheduler = ExponentialLR(optimizer, 0.5)
    saved = scheduler.state_dict()
    with Engine(model, optimizer, scheduler=scheduler) as engine:
        for _ in range(2):
            take_step(engine)
        scheduler.load_state_dict(saved)
        take_step(engine)
        assert scheduler.last_epoch == 1


def test_composed_schedulers_work_too() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=1.0)
    parts = [LinearLR(optimizer, 0.25, total_iters=4), ExponentialLR(optimizer, 0.5)]
    schedulers = [SequentialLR(optimizer, parts, [4])]
    with Engine(model, optimizer, scheduler=schedulers) as engine:
        for _ in range(5):
            take_step(engine)
        engine.flush()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5)
    optimizer = SGD(model.parameters(), lr=1.0)
    chained = ChainedScheduler([ExponentialLR(optimizer, 0.5), ExponentialLR(optimizer, 0.5)])
    with Engine(model, optimizer, scheduler=chained) as engine:
        take_step(engine)
        engine.flush()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25)


def test_history_says_when_the_scale_changed_and_why() -> None:
    model = mlp()
    recipe = {"base": "fp16", "loss_scale": {"init": 64, "growth_interval": 2, "ceiling": 128}}
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe) as engine:
        for overflow in (False, False, True, False, False, False, False):
            take_step(engine, overflow=overflow)
        engine.flush()
        history = engine.loss_scales[None].history
    assert history == [
        (0, 64, "start"),
        (2, 128, "growth"),
        (3, 64, "overflow"),
        (5, 128, "growth"),
    ]


@pytest.mark.parametrize(("recipe", "named"), [("fp16", True), ("bf16", False), ("fp32", False)])
def test_a_collapse_advises_another_format_where_it_helps(recipe: str, *, named: bool) -> None:
    model = mlp()
    scaled = {"base": recipe, "loss_scale": {"init": 2, "floor": 1}}
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=scaled) as engine:
        for _ in range(2):
            take_step(engine, overflow=True)
        with pytest.raises(LossScaleCollapse, match="lower the learning rate") as caught:
            engine.flush()
    assert ("recipe='bf16'" in str(caught.value)) is named


@pytest.mark.parametrize("loss_id", [None, "mine"])
def test_collapse_names_the_parameters_of_the_last_overflow(loss_id: str | None) -> None:
    model = mlp()
    recipe = {"base": "fp16", "loss_scale": {"init": 4, "floor": 1}}
    before = [param.detach().clone() for param in model.parameters()]
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe) as engine:

        def overflow_in_first_layer() -> None:
            with engine.autocast():
                hidden = with_infinite_gradient(model[0](INPUTS))
                loss = model[1:](hidden).float().square().mean()
            engine.backward(loss, loss_id=loss_id)
            engine.step()

        for _ in range(3):
            overflow_in_first_layer()
        assert float(engine.loss_scales[loss_id].scale) == 1.0
        name = "loss 'mine'" if loss_id else "the loss scale"
        with pytest.raises(
            LossScaleCollapse, match=rf"{name} collapsed at step 3.*1.*: 0\.weight, 0\.bias\. Look"
        ):
            engine.flush()
        assert all(map(torch.equal, before, model.parameters()))
        take_step(engine)  # Whoever catches it may go on.


def test_many_skips_in_a_row_are_a_collapse_even_of_a_static_scale() -> None:
    model = mlp()
    recipe = {
        "base": "fp16",
        "loss_scale": {"dynamic": False, "init": 8.0, "collapse_after": 3},
    }
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe) as engine:
        for overflow in (True, True, False, True, True, True):
            take_step(engine, overflow=overflow)
            assert engine.loss_scale == 8.0
        engine.backward(engine.model(INPUTS).mean())
        with pytest.raises(
            LossScaleCollapse, match=r"3 steps in a row.*write loss_scale='dynamic'"
        ):
            engine.step()


def test_skipped_counts_windows_that_were_left_out() -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16") as engine:
        for overflow in (True, False, True):
            take_step(engine, overflow=overflow)
        assert engine.skipped == 2
        assert engine.steps == 3


def test_asking_how_many_steps_were_skipped_settles_nothing() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, 0.5)
    with Engine(model, optimizer, recipe="fp16", scheduler=scheduler) as engine:
        take_step(engine, overflow=True)
        assert engine.skipped == 1
        take_step(engine)
        assert engine.skipped == 1
        assert scheduler.last_epoch == 0
        engine.flush()
        assert engine.skipped == 1
        assert scheduler.last_epoch == 1
