"""The times of steps: what is counted, and what a run's summary says of them."""

from __future__ import annotations

import pytest
import torch

from halfstep.train.loop.loop import train
from halfstep.train.observers.step_times import StepTimes

CPU = torch.device("cpu")


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def times(clock):
    return StepTimes(CPU, clock)


def steps(times, clock, *seconds):
    times.after_pause()
    for number, each in enumerate(seconds, start=1):
        clock.now += each
        times.stepped(number, None)


def test_warm_up_and_the_first_step_after_a_pause_are_left_out(times, clock):
    steps(times, clock, 9.0, 9.0, 9.0, 1.0, 2.0)
    clock.now += 100.0
    steps(times, clock, 50.0, 3.0)
    assert times.quantile(0) == 1.0
    assert times.quantile(0.5) == 2.0
    assert times.quantile(1) == 3.0


def test_a_share_of_the_steps_stays_within_its_quantile(times, clock):
    steps(times, clock, 0.0, 0.0, 0.0, *range(101))
    assert times.quantile(0.95) == pytest.approx(95.0)


def test_without_steps_nothing_is_said(times, clock):
    assert times.quantile(0.5) is None
    steps(times, clock, 1.0, 1.0, 1.0)
    assert times.quantile(0.5) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_timed_by_its_own_clock(clock):
    times = StepTimes(torch.device("cuda"), clock)
    matrix = torch.rand(2048, 2048, device="cuda")
    times.after_pause()
    for number in range(8):
        matrix = matrix @ matrix / 2048
        times.stepped(number + 1, None)
    assert times.quantile(0.5) > 0


def test_a_run_says_how_long_its_steps_took(tiny, tmp_path):
    summary = train(tiny("epochs=2"), tmp_path / "run", quiet=True)
    assert 0 < summary.step_seconds_median <= summary.step_seconds_p95
    assert summary.step_seconds_median * summary.steps < summary.wall_seconds


def test_a_run_of_many_classes_has_top5(tiny, tmp_path):
    summary = train(tiny("epochs=2"), tmp_path / "run", quiet=True)
    assert summary.best_accuracy <= summary.best_accuracy_top5 <= 1
    assert summary.final_accuracy <= summary.final_accuracy_top5 <= 1
