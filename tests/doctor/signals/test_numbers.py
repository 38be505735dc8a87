"""The always-on numbers do not wait for the device."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from halfstep.doctor import Watch
from halfstep.doctor.signals.values import numbers
from halfstep.doctor.signals.values.samples import is_sampled

STEPS = 9
MICRO_STEPS = 2


class Clock:
    """Counts the steps of a loop, for what must not happen in the same one."""

    step = 0


@pytest.fixture
def read_in(monkeypatch, _processor_runs_behind) -> list[tuple[int, int]]:
    """Which step's numbers were read in which step."""
    reads: list[tuple[int, int]] = []
    # Fake tensors have no values to be read, late or not.
    monkeypatch.setattr(
        numbers.Series,
        "_read",
        lambda series, reading: reads.append((reading.iteration, Clock.step)),
    )
    return reads


def train(observer: Watch, optimizer_kind, *, scaled: bool) -> list[int]:
    """Train on fake tensors, which raise where a value is asked for; the steps in which it was."""
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    averages = [each.detach().clone() for each in model.parameters()]
    optimizer = optimizer_kind(model.parameters(), lr=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    reads = []
    for Clock.step in range(STEPS):
        before = len(observer.troubles)
        optimizer.zero_grad()
        for _ in range(MICRO_STEPS):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = model(torch.empty(8, 6))
                loss = nn.functional.cross_entropy(outputs, torch.zeros(8, dtype=torch.long))
            scaler.scale(loss / MICRO_STEPS).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        with torch.no_grad():
            for average, parameter in zip(averages, model.parameters(), strict=True):
                average.lerp_(parameter, 0.1)
        if len(observer.troubles) > before:
            reads.append(Clock.step)
    return reads


@pytest.mark.parametrize("optimizer_kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("scaled", [False, True], ids=["no scaler", "GradScaler"])
def test_an_ordinary_step_reads_nothing_from_the_device(read_in, optimizer_kind, scaled) -> None:
    observer = Watch()
    with FakeTensorMode(), observer:
        reads = train(observer, optimizer_kind, scaled=scaled)
    # The first step reads buffers, and those that are looked at closely read parameters.
    assert set(reads) <= {0, *filter(is_sampled, range(STEPS))}
    assert len(reads) >= 1


def test_numbers_are_read_once_the_next_step_has_come(read_in) -> None:
    observer = Watch()
    with FakeTensorMode(), observer:
        train(observer, torch.optim.SGD, scaled=True)
    *read, at_the_end = read_in
    assert read == [(step, step + 1) for step in range(1, STEPS - 1)]  # 0 is no ordinary step
    assert at_the_end[0] == STEPS - 1


def test_norms_of_wide_gradients_are_not_narrowed():
    half = torch.full((4,), 6e4, dtype=torch.float16)
    double = torch.tensor([3e150, 4e150], dtype=torch.float64)
    assert numbers.gradient_norm([half]).item() == pytest.approx(1.2e5, rel=1e-3)
    assert numbers.gradient_norm([half, double]).item() == pytest.approx(5e150)
    assert numbers.gradient_norm([torch.tensor([3 + 4j])]).item() == pytest.approx(5.0)


@pytest.mark.parametrize("scale", [0.0, 4.0])
def test_the_smallest_scale_may_be_zero(scale):
    series = numbers.Series(lambda _: None)
    for number, each in enumerate((8.0, scale, 16.0)):
        series.take(
            number,
            0,
            learning_rate=0.1,
            loss=torch.tensor(1.0),
            gradients=[torch.ones(2)],
            scale=torch.tensor(each),
            skipped=False,
        )
    assert series.freeze().smallest_scale == scale
