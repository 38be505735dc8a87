import errno
import os
import signal
import subprocess
import sys

import pytest

from halfstep.errors import UserError
from halfstep.train.store import lock
from halfstep.train.store.lock import LockWarning, locked

# Takes the lock, forks a worker that outlives it, and says its own process id once both are there.
HOLDER = """
import os, pathlib, sys
from halfstep.train.store.lock import locked

with locked(pathlib.Path(sys.argv[1]), str):
    if os.fork() == 0:
        print(os.getppid(), flush=True)
    sys.stdin.read()
"""


def refusal(holder):
    return f"taken: {holder}"


def assert_free(directory):
    with locked(directory, refusal):
        pass


def assert_taken(directory, by=""):
    with pytest.raises(UserError, match=f"^taken: {by}"), locked(directory, refusal):
        pass


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    return tmp_path / "run"


def test_second_holder_is_told_who_the_first_is(run):
    with locked(run, refusal):
        assert_taken(run, by=rf"process {os.getpid()} on \S+$")
    assert_free(run)


def test_kill_releases_it_though_a_data_worker_lives_on(run):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, run],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert int(holder.stdout.readline()) == holder.pid
    assert_taken(run, by=f"process {holder.pid} on")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert_free(run)
    holder.stdin.close()  # ends the worker
    assert holder.stdout.read() == ""


def test_what_was_made_for_it_goes_again_unless_something_came_to_lie_there(tmp_path):
    assert_free(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    with locked(tmp_path / "a" / "b", refusal):
        (tmp_path / "a" / "b" / "config.yaml").touch()
    assert (tmp_path / "a" / "b" / "config.yaml").exists()
    (tmp_path / "mine").mkdir()
    assert_free(tmp_path / "mine")
    assert (tmp_path / "mine").is_dir()


def test_file_that_its_last_holder_removed_is_not_taken_for_the_lock(tmp_path, monkeypatch):
    real, calls = lock.fcntl.flock, []

    def removed_meanwhile(file, how):
        real(file, how)
        calls.append(None)
        if len(calls) == 1:
            (tmp_path / "run" / ".lock").unlink()
            (tmp_path / "run").rmdir()

    monkeypatch.setattr(lock.fcntl, "flock", removed_meanwhile)
    with locked(tmp_path / "run", refusal):
        assert len(calls) == 2
        assert_taken(tmp_path / "run")


def test_patience_waits_for_a_holder_that_leaves(run, monkeypatch):
    first = locked(run, refusal)
    first.__enter__()
    monkeypatch.setattr(lock.time, "sleep", lambda _: first.__exit__(None, None, None))
    with locked(run, refusal, patience=60):
        assert_taken(run)


def test_file_system_without_locks_is_warned_of_and_used(run, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with pytest.warns(LockWarning, match="cannot be locked: No locks"), locked(run, refusal):
        pass


def test_full_disk_hides_the_holders_name_only(run, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lock.os, "pwrite", full)
    with locked(run, refusal):
        assert_taken(run, by="another process$")
