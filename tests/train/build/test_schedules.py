import math
import warnings

import pytest
import torch
from torch.optim import SGD, Adagrad, AdamW
from torch.optim.lr_scheduler import LinearLR, OneCycleLR, ReduceLROnPlateau

from halfstep.errors import UserError
from halfstep.train.build import schedules
from halfstep.train.config.schedule import (
    ConstantConfig,
    CosineConfig,
    MultiStepConfig,
    OneCycleConfig,
    PlateauConfig,
    StepConfig,
)

FIGURES = {"loss": 1.0, "accuracy": 0.5}


def optimizer_of(lr=1.0):
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)]
    return SGD(groups, lr=lr)


def rates(config, steps, lr=1.0, steps_per_epoch=1, optimizer=None):
    optimizer = optimizer or optimizer_of(lr)
    schedule = schedules.build(config, optimizer, steps=steps, steps_per_epoch=steps_per_epoch)
    seen = []
    for _ in range(steps):
        assert len({group["lr"] for group in optimizer.param_groups}) == 1
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if schedule.per_step:
            schedule.per_step.step()
    return seen


def test_constant_rate_rises_linearly_and_stays():
    assert rates(ConstantConfig(name="constant"), 5) == [1.0] * 5
    warm = rates(ConstantConfig(name="constant", warmup=0.5), 6)
    assert warm == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


@pytest.mark.parametrize("warm", [0, 3])
def test_a_rate_that_has_risen_is_kept_as_torch_keeps_it(warm):
    states = []
    for make in (schedules._rise, lambda o, w: LinearLR(o, 1 / (w + 1), total_iters=w)):
        groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": lr} for lr in (0.1, 0.3)]
        optimizer = torch.optim.SGD(groups)
        schedule, found = make(optimizer, warm), []
        for number in range(9):
            if number == 6:
                optimizer.param_groups[0]["lr"] = 0.05
            optimizer.step()
            schedule.step()
            rates = [group["lr"] for group in optimizer.param_groups]
            found.append((rates, dict(schedule.state_dict())))
        states.append(found)
    assert states[0] == states[1]


def test_warm_up_in_epochs_is_as_many_steps():
    wanted = rates(ConstantConfig(name="constant", warmup=0.3), 10)
    config = ConstantConfig(name="constant", warmup_epochs=1.5)
    assert rates(config, 10, steps_per_epoch=2) == wanted
    assert wanted[:4] == pytest.approx([0.25, 0.5, 0.75, 1])


def test_cosine_is_half_a_cosine_after_the_warm_up():
    plain = rates(CosineConfig(name="cosine"), 8, lr=0.4)
    assert plain == pytest.approx([0.2 * (1 + math.cos(math.pi * k / 8)) for k in range(8)])
    warm = rates(CosineConfig(name="cosine", warmup=0.2), 10)
    assert warm[:2] == pytest.approx([1 / 3, 2 / 3])
    assert warm[2:] == pytest.approx([0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(8)])


def test_cosine_ends_at_its_lowest_rate():
    seen = rates(CosineConfig(name="cosine", min_lr=0.2), 100)
    assert seen[-1] == pytest.approx(0.2, abs=1e-3)
    assert min(seen) > 0.2
    with pytest.raises(UserError, match=r"schedule\.min_lr is 2\.0, above the learning rate of 1"):
        rates(CosineConfig(name="cosine", min_lr=2.0), 4)


def test_one_cycle_is_torchs():
    optimizer = optimizer_of(0.5)
    reference = OneCycleLR(optimizer, 0.5, total_steps=20, pct_start=0.3)
    wanted = []
    for _ in range(20):
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()
    assert rates(OneCycleConfig(name="one-cycle"), 20, lr=0.5) == pytest.approx(wanted)
    assert max(wanted) == pytest.approx(0.5)


def test_one_cycle_does_without_a_momentum_to_cycle():
    optimizer = Adagrad([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    seen = rates(OneCycleConfig(name="one-cycle"), 10, optimizer=optimizer)
    assert max(seen) == pytest.approx(1.0)


def test_step_drops_the_rate_every_so_many_epochs():
    config = StepConfig(name="step", every_epochs=2, gamma=0.5)
    seen = rates(config, 15, steps_per_epoch=2)
    assert seen == pytest.approx([0.5 ** (step // 4) for step in range(15)])
    halves = StepConfig(name="step", every_epochs=1.5, gamma=0.5)
    assert rates(halves, 9, steps_per_epoch=2) == pytest.approx([0.5 ** (s // 3) for s in range(9)])


def test_rate_cannot_drop_more_than_once_a_step():
    with pytest.raises(
        UserError, match=r"every_epochs is 0\.1, less than .*allowed: 0\.25 or more"
    ):
        rates(StepConfig(name="step", every_epochs=0.1), 9, steps_per_epoch=4)


def test_multistep_drops_the_rate_at_epochs_of_the_whole_run_warm_up_included():
    config = MultiStepConfig(name="multistep", milestones=(2, 3), gamma=0.1, warmup_epochs=1)
    wanted = [0.25, 0.5, 0.75, 1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01]
    assert rates(config, 12, steps_per_epoch=3) == pytest.approx(wanted)


@pytest.mark.parametrize("steps", range(1, 13))
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.3, 0.5, 0.99])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ConstantConfig, "constant"),
        (CosineConfig, "cosine"),
        (OneCycleConfig, "one-cycle"),
        (StepConfig, "step"),
        (PlateauConfig, "plateau"),
    ],
)
def test_schedules_work_for_runs_of_any_length(kind, name, warmup, steps):
    seen = rates(kind(name=name, warmup=warmup), steps)
    assert all(0 < rate <= 1 + 1e-9 for rate in seen)


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_plateau_is_torchs_after_each_validation(metric):
    config = PlateauConfig(name="plateau", metric=metric, patience=1, gamma=0.5, min_lr=0.2)
    ours, theirs = optimizer_of(), optimizer_of()
    built = schedules.build(config, ours, steps=100, steps_per_epoch=10)
    reference = ReduceLROnPlateau(
        theirs, "min" if metric == "loss" else "max", factor=0.5, patience=1, min_lr=0.2
    )
    assert built.per_step is None
    seen = []
    for value in (0.5, 0.6, 0.6, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4):
        built.per_epoch(FIGURES | {metric: value})
        reference.step(value)
        seen.append(ours.param_groups[0]["lr"])
        assert seen[-1] == theirs.param_groups[0]["lr"]
    assert {0.5, 0.2} <= set(seen)


def test_plateau_waits_for_its_warm_up():
    config = PlateauConfig(name="plateau", patience=0, gamma=0.5, warmup_epochs=2)
    optimizer = optimizer_of()
    built = schedules.build(config, optimizer, steps=100, steps_per_epoch=2)
    seen = []
    for _ in range(4):
        for _ in range(2):
            optimizer.step()
            built.per_step.step()
        built.per_epoch(FIGURES)
        seen.append(optimizer.param_groups[0]["lr"])
    assert seen == pytest.approx([0.6, 1.0, 0.5, 0.25])


def test_plateau_goes_on_from_its_state():
    config = PlateauConfig(name="plateau", patience=2, gamma=0.5)

    def run(losses, state=None):
        optimizer = optimizer_of()
        built = schedules.build(config, optimizer, steps=100, steps_per_epoch=10)
        built.load_state_dict(state or built.state_dict())
        for loss in losses:
            built.per_epoch(FIGURES | {"loss": loss})
        return optimizer.param_groups[0]["lr"], built.state_dict()

    whole, wanted = run([1.0, 1.0, 1.0, 1.0])
    _, halfway = run([1.0, 1.0])
    resumed, state = run([1.0, 1.0], halfway)
    assert whole == resumed == 0.5
    assert state == wanted


@pytest.mark.parametrize(
    "config",
    [
        ConstantConfig(name="constant", warmup=0.2),
        CosineConfig(name="cosine", warmup=0.2),
        OneCycleConfig(name="one-cycle"),
        StepConfig(name="step", every_epochs=1, warmup=0.2),
        MultiStepConfig(name="multistep", milestones=(1, 2)),
        PlateauConfig(name="plateau", warmup=0.2),
    ],
    ids=lambda config: config.name,
)
def test_schedule_goes_on_from_a_state_that_is_plain_data(config, tmp_path):
    def start():
        optimizer = optimizer_of()
        built = schedules.build(config, optimizer, steps=20, steps_per_epoch=5)
        return optimizer, built.per_step

    def go(optimizer, schedule, steps):
        seen = []
        for _ in range(steps):
            optimizer.step()
            schedule.step()
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    whole = go(*start(), 20)
    optimizer, schedule = start()
    go(optimizer, schedule, 7)
    torch.save([optimizer.state_dict(), schedule.state_dict()], tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    optimizer, schedule = start()
    optimizer.load_state_dict(saved[0])
    schedule.load_state_dict(saved[1])
    assert go(optimizer, schedule, 13) == whole[7:]


@pytest.mark.parametrize(
    ("make", "asked_for"),
    [
        (lambda param: SGD([param], lr=1.0, momentum=0.5), 0.5),
        (lambda param: AdamW([param], lr=1.0, betas=(0.8, 0.99)), 0.8),
        (lambda param: SGD([param], lr=1.0), 0.0),
    ],
)
def test_one_cycle_moves_momentum_around_what_was_asked_for(make, asked_for):
    optimizer = make(torch.nn.Parameter(torch.ones(2)))
    schedule = schedules.build(
        OneCycleConfig(name="one-cycle"), optimizer, steps=20, steps_per_epoch=1
    )
    seen = []
    for _ in range(20):
        group = optimizer.param_groups[0]
        seen.append(group["betas"][0] if "betas" in group else group["momentum"])
        optimizer.step()
        schedule.per_step.step()
    assert (min(seen) + max(seen)) / 2 == pytest.approx(asked_for, abs=0.01)
    assert max(seen) - min(seen) == pytest.approx(0.1 if asked_for else 0.0, abs=0.01)


def test_one_cycle_of_one_step_has_the_full_rate():
    assert rates(OneCycleConfig(name="one-cycle"), 1, lr=0.5) == [0.5]


@pytest.mark.parametrize(("epochs", "warned"), [(5, 1), (4.9, 0), (0, 0)])
def test_only_a_warm_up_that_the_run_does_not_outlast_is_warned_of(epochs, warned):
    config = CosineConfig(name="cosine", warmup_epochs=epochs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedules.warn_of_endless_rise(config, steps=50, steps_per_epoch=10)
    assert len(caught) == warned
