import ctypes
import os
import signal
import subprocess
import sys
from multiprocessing import connection

import pytest
import torch
from torch.utils.data import Dataset

from halfstep.train.data.pipeline.loader import Loader


class Doubled(Dataset):
    def __getitem__(self, job):
        return torch.tensor([2 * job]), os.getpid()


def values(loaded):
    return [int(value) for value, _ in loaded]


def test_jobs_come_back_in_order_from_workers_that_live_on():
    loader = Loader(Doubled(), workers=2, pinned=False)
    processes = set()
    for start in (0, 10):
        found = list(loader.load(iter(range(start, start + 5))))
        assert values(found) == [2 * job for job in range(start, start + 5)]
        processes |= {process for _, process in found}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_without_workers_this_process_loads():
    loader = Loader(Doubled(), workers=0, pinned=False)
    before = torch.get_rng_state()
    assert list(loader.load(iter([3]))) == [(torch.tensor([6]), os.getpid())]
    assert torch.equal(before, torch.get_rng_state())


def test_new_jobs_take_the_place_of_those_that_were_left():
    loader = Loader(Doubled(), workers=1, pinned=False)
    next(loader.load(iter(range(9))))
    assert values(loader.load(iter([50, 51]))) == [100, 102]


@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1"])
def test_workers_leave_a_signal_to_the_training_process(name):
    loader = Loader(Doubled(), workers=1, pinned=False)
    loaded = loader.load(iter(range(30)))
    _, worker = next(loaded)
    os.kill(worker, getattr(signal, name))
    assert values(loaded) == [2 * job for job in range(1, 30)]


def test_workers_that_are_terminated_make_no_error_of_it():
    loader = Loader(Doubled(), workers=1, pinned=False)
    loaded = loader.load(iter(range(30)))
    next(loaded)
    (worker,) = loaded._workers
    # By another process, as a scheduler does; what the training process sends, torch expects.
    subprocess.run(["kill", str(worker.pid)], check=True)
    worker.join(60)
    assert worker.exitcode == 0


def test_a_worker_whose_run_dies_while_tensors_are_handed_over_says_nothing(monkeypatch, capfd):
    loader = Loader(Doubled(), workers=1, pinned=False)
    assert values(loader.load(iter([0]))) == [0]

    def hang_up(run, _):
        run.close()
        raise ConnectionResetError("as one that dies hangs up")

    with monkeypatch.context() as patch:
        patch.setattr(connection, "answer_challenge", hang_up)
        with pytest.raises(ConnectionResetError):
            next(loader.load(iter([1])))
    # The same thread hands these over, so that whatever it had to say has been said.
    assert values(loader.load(iter([2, 3]))) == [4, 6]
    assert capfd.readouterr().err == ""


class Failing(Dataset):
    """Ends a thread of its worker by an error, as the thread that hands tensors over may end."""

    def __getitem__(self, error):
        sys.excepthook(type(error), error, None)


def test_a_worker_that_the_run_hangs_up_on_says_nothing(capfd):
    loader = Loader(Failing(), workers=1, pinned=False)
    errors = (ConnectionResetError("reset by peer"), BrokenPipeError("gone"), EOFError())
    assert list(loader.load(iter(errors))) == [None] * 3
    assert capfd.readouterr().err == ""
    assert list(loader.load(iter([ArithmeticError("of its own")]))) == [None]
    assert "ArithmeticError: of its own" in capfd.readouterr().err


class EndsWithTheRun(Dataset):
    """Gives the signal that Linux sends a worker when the training process ends."""

    def __getitem__(self, job):
        asked = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(asked))  # PR_GET_PDEATHSIG
        return asked.value


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_workers_are_killed_when_the_training_process_ends():
    loader = Loader(EndsWithTheRun(), workers=1, pinned=False)
    assert list(loader.load(iter([0]))) == [signal.SIGKILL]


DISTANT = """
import os, sys, time
from halfstep.train.data.pipeline.loader import _leave_all_to_the_run

_leave_all_to_the_run(int(sys.argv[1]), 0)
print("waits", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")
def test_a_worker_behind_a_fork_server_is_killed_when_the_training_process_ends():
    # A fork server outlives the run as long as a worker lives: here neither has started the other.
    with subprocess.Popen(["sleep", "60"]) as run:
        command = [sys.executable, "-c", DISTANT, str(run.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout.readline() == "waits\n"
            run.kill()
            assert worker.wait(30) == -signal.SIGKILL
