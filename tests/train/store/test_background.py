import os
import threading

import pytest

from halfstep.train.store import background
from halfstep.train.store.background import Background


@pytest.fixture
def slow():
    """Start a call that goes on until it is told to end, soon after somebody waits for it."""
    end = threading.Event()

    def start():
        done = []

        def work():
            assert end.wait(60)
            done.append(True)

        return Background(work), done

    yield start, end
    end.set()
    background.wait()


def test_caller_goes_on_and_result_waits(slow):
    start, end = slow
    call, done = start()
    assert not call.done
    assert not done
    threading.Timer(0.05, end.set).start()
    call.result()
    assert call.done
    assert done


def test_error_is_raised_by_result_in_the_thread_that_asks():
    call = Background(lambda: 1 // 0)
    background.wait()
    with pytest.raises(ZeroDivisionError):
        call.result()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside other threads
def test_fork_waits_until_nothing_is_written(slow):
    start, end = slow
    _, done = start()
    threading.Timer(0.05, end.set).start()
    child = os.fork()
    if child == 0:
        os._exit(0 if done and not background._threads else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert done


def test_wait_waits_for_all_and_forgets_them(slow):
    start, end = slow
    (_, first), (_, second) = start(), start()
    threading.Timer(0.05, end.set).start()
    background.wait()
    assert first
    assert second
    assert not background._threads
