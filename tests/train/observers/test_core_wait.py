import os
import warnings
from pathlib import Path

import pytest
import torch

from halfstep.train.loop.loop import train
from halfstep.train.observers.step_times import CoreWait, CoreWaitWarning, thread_times

CPU = torch.device("cpu")
needs_schedstat = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel does not say"
)


class Threads:
    """Threads of a process that never was, in seconds that they computed and waited."""

    def __init__(self):
        self.now = 0.0
        self.times = {}

    def pass_by(self, seconds, **spent):
        self.now += seconds
        for thread, (computed, waited) in spent.items():
            before = self.times.get(thread, (0, 0))
            self.times[thread] = (
                before[0] + int(computed * 1e9),
                before[1] + int(waited * 1e9),
            )


@pytest.fixture
def threads():
    return Threads()


@pytest.fixture
def cores(threads):
    return CoreWait(CPU, lambda: dict(threads.times), lambda: threads.now)


@pytest.fixture
def several(monkeypatch):
    """As under two threads that spin, as they do by default."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)


def test_the_share_is_of_the_time_in_which_threads_could_compute(cores, threads):
    threads.pass_by(9.0, main=(1.0, 8.0))  # before training
    cores.begin()
    threads.pass_by(2.0, main=(1.5, 0.5), other=(0.5, 0.5))
    cores.step_done(threads.now)
    assert cores.share == pytest.approx(1.0 / 3.0)


def test_pauses_and_threads_that_end_do_not_count(cores, threads):
    cores.begin()
    threads.pass_by(1.0, main=(0.9, 0.1), other=(0.9, 0.1))
    cores.step_done(threads.now)
    threads.pass_by(5.0, main=(0.0, 5.0))
    cores.begin()
    del threads.times["other"]
    threads.pass_by(1.0, main=(0.9, 0.1))
    cores.step_done(threads.now)
    assert cores.share == pytest.approx(0.1)


def test_steps_in_quick_succession_are_looked_at_together(cores, threads):
    reads = []
    cores._read = lambda: reads.append(1) or dict(threads.times)
    cores.begin()
    for _ in range(100):
        threads.pass_by(0.01, main=(0.01, 0.0))
        cores.step_done(threads.now)
    assert len(reads) <= 5
    assert cores.share == 0.0


def test_where_the_kernel_says_nothing_nothing_is_known(threads):
    cores = CoreWait(CPU, dict, lambda: threads.now)
    cores.begin()
    threads.pass_by(10.0)
    cores.step_done(threads.now)
    assert cores.share is None


def wait_long(cores, threads):
    cores.begin()
    for _ in range(10):
        threads.pass_by(1.0, main=(0.5, 0.5), other=(0.5, 0.5))
        cores.step_done(threads.now)


@pytest.mark.usefixtures("several")
def test_threads_that_spin_for_cores_that_others_have_are_said_once_with_the_setting(
    cores, threads
):
    with pytest.warns(
        CoreWaitWarning, match=r"50% of the time, .* write OMP_NUM_THREADS=1"
    ) as said:
        wait_long(cores, threads)
    assert len(said) == 1


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("helped", ["one thread", "passive", "a GPU", "idle cores"])
def test_nothing_is_said_where_no_setting_would_help(threads, monkeypatch, helped):
    if helped == "one thread":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    if helped == "passive":
        monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    device = torch.device("cuda" if helped == "a GPU" else "cpu")
    cores = CoreWait(device, lambda: dict(threads.times), lambda: threads.now)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if helped == "idle cores":
            cores.begin()
            threads.pass_by(9.0, main=(9.0, 0.1))
            cores.step_done(threads.now)
        else:
            wait_long(cores, threads)
            assert cores.share == 0.5


@needs_schedstat
def test_the_kernel_counts_what_this_thread_computes():
    before = thread_times()[str(os.getpid())]
    assert sum(range(2_000_000))
    after = thread_times()[str(os.getpid())]
    assert after[0] - before[0] > 1_000_000  # nanoseconds
    assert after[1] >= before[1]


@needs_schedstat
def test_a_run_says_how_long_it_waited(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("halfstep.train.observers.step_times._EVERY_S", 0.0)
    summary = train(tiny("epochs=1"), tmp_path / "run", quiet=True)
    assert 0.0 <= summary.core_wait_share < 1.0
