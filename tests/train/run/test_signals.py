import os
import signal

import killed
import pytest
from sameness import same

import warm
from halfstep.train.loop import loop
from halfstep.train.loop.loop import train
from halfstep.train.run.microbatch import MicroBatches
from halfstep.train.run.signals import Stopped, StopRequests
from halfstep.train.store import checkpoint, rotation
from halfstep.train.store.run_directory import read_summary
from halfstep.train.task.in_step import Asked


@pytest.fixture
def ask(monkeypatch):
    """Send a signal to this process in the n-th call of a function, before it works."""

    def before(owner, name, number, call=1):
        real, calls = getattr(owner, name), []

        def asked(*args, **kwargs):
            calls.append(None)
            if len(calls) == call:
                os.kill(os.getpid(), number)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, asked)

    return before


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory):
    run = tmp_path_factory.mktemp("whole")
    train(pictures(recipe="fp16"), run, quiet=True)
    return checkpoint.load(checkpoint.path(run, "last"))


@pytest.mark.parametrize(
    ("number", "place", "position"),
    [
        (signal.SIGTERM, (MicroBatches, "add"), (1, 3)),  # within a window of the second epoch
        (signal.SIGUSR1, (loop, "validate"), (1, 6)),  # in its validation
        (signal.SIGTERM, (checkpoint, "save"), (1, 0)),  # in the first of two saves after it
    ],
    ids=["training", "validation", "save"],
)
def test_signal_saves_where_it_is_and_the_run_goes_on_exactly(
    pictures, whole, tmp_path, ask, number, place, position
):
    calls = {"add": 9, "validate": 2, "save": 2}
    before = signal.getsignal(number)
    ask(*place, number, calls[place[1]])
    with pytest.raises(
        Stopped, match=r"interrupted in epoch \d; .*--resume auto continues from"
    ) as stop:
        train(pictures(recipe="fp16"), tmp_path, quiet=True)
    assert stop.value.number == number
    assert signal.getsignal(number) is before
    stored = checkpoint.load(rotation.newest_first(tmp_path)[0])
    assert (stored.epoch, stored.batch) == position
    assert read_summary(tmp_path) is None
    assert not list(tmp_path.rglob("*.tmp"))
    train(pictures(recipe="fp16"), tmp_path, quiet=True, go_on="auto")
    assert same(checkpoint.load(checkpoint.path(tmp_path, "last")).model, whole.model)


def test_ctrl_c_saves_too_and_a_second_one_does_not_wait(pictures, tmp_path, ask):
    ask(MicroBatches, "add", signal.SIGINT, 2)
    with pytest.raises(KeyboardInterrupt, match=r"no epoch was finished; --resume auto"):
        train(pictures(), tmp_path / "once", quiet=True)
    assert checkpoint.load(rotation.newest_first(tmp_path / "once")[0]).batch == 2
    ask(MicroBatches, "add", signal.SIGINT, 2)
    ask(MicroBatches, "add", signal.SIGINT, 2)  # around the other: both in the same call
    with pytest.raises(KeyboardInterrupt, match=r"no epoch was finished$"):
        train(pictures(), tmp_path / "twice", quiet=True)


def test_ctrl_c_that_reaches_the_workers_too_leaves_one_line(pictures_file, tmp_path):
    run = tmp_path / "run"
    ended = warm.run(killed.interrupted, pictures_file, run, 2, 3, session=True)
    assert ended[:2] == (130, "")
    assert ended.err == (
        f"interrupted in epoch 1; the run is in '{run}'; no epoch was finished; --resume auto "
        "continues from step-00000001.pt\n"
    )


def test_requests_are_obeyed_between_two_items_only():
    with StopRequests() as requests:
        items = requests.until_asked(iter(range(5)))
        assert [next(items), next(items)] == [0, 1]
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Asked):
            next(items)
    assert requests.number == signal.SIGTERM


def test_loader_that_dies_of_the_same_ctrl_c_is_no_error():
    def dying():
        yield 0
        os.kill(os.getpid(), signal.SIGINT)
        raise RuntimeError("DataLoader worker exited unexpectedly")

    with StopRequests() as requests, pytest.raises(Asked):
        list(requests.until_asked(dying()))
    with StopRequests() as requests, pytest.raises(RuntimeError, match="of itself"):
        list(requests.until_asked(fail for fail in [0] if _fail()))


def _fail():
    raise RuntimeError("of itself")


def test_signals_that_were_ignored_stay_ignored():
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with StopRequests() as requests:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert requests.number is None
    finally:
        signal.signal(signal.SIGUSR1, before)
