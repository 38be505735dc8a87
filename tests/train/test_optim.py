import math

import pytest
import torch
from torch.optim import SGD, AdamW

from halfstep.train.config import (
    AdamWConfig,
    ConstantConfig,
    CosineConfig,
    OneCycleConfig,
    SgdConfig,
)
from halfstep.train.optim import build_optimizer, build_schedule


def parameter():
    return torch.nn.Parameter(torch.ones(2))


def rates(config, steps, lr=1.0):
    optimizer = SGD([parameter()], lr=lr)
    schedule = build_schedule(config, optimizer, steps)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def test_settings_reach_torchs_optimizers():
    sgd = SgdConfig(name="sgd", lr=0.3, momentum=0.8, nesterov=True, weight_decay=0.1)
    built = build_optimizer(sgd, [parameter()], fused=False)
    assert type(built) is SGD
    wanted = {"lr": 0.3, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1, "fused": False}
    assert wanted.items() <= built.defaults.items()
    adamw = AdamWConfig(name="adamw", lr=0.3, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    built = build_optimizer(adamw, [parameter()], fused=True)
    assert type(built) is AdamW
    wanted = {"lr": 0.3, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1, "fused": True}
    assert wanted.items() <= built.defaults.items()


def test_constant_rate_rises_linearly_and_stays():
    assert rates(ConstantConfig(name="constant"), 5) == [1.0] * 5
    warm = rates(ConstantConfig(name="constant", warmup=0.5), 6)
    assert warm == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_cosine_is_half_a_cosine_after_the_warm_up():
    plain = rates(CosineConfig(name="cosine"), 8, lr=0.4)
    assert plain == pytest.approx([0.2 * (1 + math.cos(math.pi * k / 8)) for k in range(8)])
    warm = rates(CosineConfig(name="cosine", warmup=0.2), 10)
    assert warm[:2] == pytest.approx([1 / 3, 2 / 3])
    assert warm[2:] == pytest.approx([0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(8)])


def test_one_cycle_is_torchs():
    optimizer = SGD([parameter()], lr=0.5)
    reference = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=20, pct_start=0.3)
    wanted = []
    for _ in range(20):
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()
    assert rates(OneCycleConfig(name="one-cycle"), 20, lr=0.5) == pytest.approx(wanted)
    assert max(wanted) == pytest.approx(0.5)


@pytest.mark.parametrize("steps", range(1, 13))
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.3, 0.5, 0.99])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(ConstantConfig, "constant"), (CosineConfig, "cosine"), (OneCycleConfig, "one-cycle")],
)
def test_schedules_work_for_runs_of_any_length(kind, name, warmup, steps):
    seen = rates(kind(name=name, warmup=warmup), steps)
    assert all(0 < rate <= 1 + 1e-9 for rate in seen)
