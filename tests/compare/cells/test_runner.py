import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from compare.processes import is_gone
from halfstep.compare.cells.directory import prepare, result_of
from halfstep.compare.cells.runner import RunningCell, run_cell


@pytest.fixture
def cell(make_grid):
    cell = make_grid(("fp16",)).cells[0]
    prepare(cell)
    return cell


def test_a_finished_run_gives_its_summary_and_keeps_what_it_said(cell, training):
    result = run_cell(cell, training(cell, "cpu"))
    assert (result.status, result.reason) == ("finished", None)
    assert result.number("images_per_second") == 250.0
    assert result == result_of(cell)
    assert (cell.directory / "stderr.log").read_text() == ""


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("raises", "exit code 1: RuntimeError: no space left in the cupboard"),
        ("killed", "killed by SIGKILL; the system does this when memory runs out"),
        ("segfaults", "killed by SIGSEGV"),
        ("fills the disk", "exit code 1: OSError: [Errno 28] No space left on device"),
    ],
)
def test_a_crash_is_a_result_with_its_reason(cell, training, behaviour, reason):
    training.behave(fp16=behaviour)
    result = run_cell(cell, training(cell, "cpu"))
    assert (result.status, result.reason) == ("crashed", reason)


def test_a_silent_crash_names_the_log(cell, training):
    training.behave(fp16="silent")
    assert "exit code 3: the run printed no error; see " in str(
        run_cell(cell, training(cell, "cpu")).reason
    )


def test_an_error_outranks_what_libraries_say_after_it(cell):
    said = "Traceback\ntorch.OutOfMemoryError: no memory\n[W123] leaked semaphore\n"
    program = f"import sys; sys.stderr.write({said!r}); sys.exit(1)"
    result = run_cell(cell, [sys.executable, "-c", program])
    assert result.reason == "exit code 1: torch.OutOfMemoryError: no memory"


def test_a_run_that_goes_nonfinite_is_a_result_of_its_own(cell, training):
    training.behave(fp16="nonfinite")
    result = run_cell(cell, training(cell, "cpu"))
    assert (result.status, result.reason) == ("nonfinite", "the loss was nan at step 7")


def test_exit_code_zero_without_a_summary_is_a_crash(cell):
    result = run_cell(cell, [sys.executable, "-c", "print('done')"])
    assert result.status == "crashed"
    assert "no summary was written" in str(result.reason)


def test_ctrl_c_ends_the_process_and_leaves_no_result(cell, training):
    training.behave(fp16="waits")
    waiting = training.ran_file.with_name("ran.txt.waiting")
    started: list[subprocess.Popen[bytes]] = []

    def interrupt() -> None:
        while not waiting.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    original = subprocess.Popen

    class Recorded(original):  # type: ignore[misc,valid-type]
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    thread = threading.Thread(target=interrupt)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "halfstep.train.processes.ending._ENDING", ((None, 0.05), (signal.SIGINT, 10.0))
        )
        patch.setattr("halfstep.compare.cells.runner.subprocess.Popen", Recorded)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run_cell(cell, training(cell, "cpu"))
    thread.join()
    assert [process.returncode for process in started] == [-signal.SIGINT]
    assert result_of(cell).status == "pending"


def test_a_cell_that_hangs_is_ended_at_its_time_limit(cell, training, monkeypatch):
    training.behave(fp16="waits")
    monkeypatch.setattr(
        "halfstep.train.processes.ending._ENDING", ((None, 3.0), (signal.SIGKILL, 10.0))
    )
    result = run_cell(cell, training(cell, "cpu"), time_limit=0.2)
    assert (result.status, result.reason) == ("crashed", "stopped by --time-limit after 0.2s")


# Launches a process in a session of its own, and goes on whatever it is asked.
LAUNCHER = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.environ["HALFSTEP_LAUNCHER"] = str(os.getpid())
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], start_new_session=True)
time.sleep(60)
"""
WORKER = """
import os, pathlib, sys, time
from halfstep.train.processes.launch import end_with_launcher
end_with_launcher()
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
@pytest.mark.parametrize("how", ["the time limit", "somebody"])
def test_processes_do_not_outlive_a_launcher_that_is_killed(cell, monkeypatch, how):
    pid_file = cell.directory / "worker.pid"
    command = [sys.executable, "-c", LAUNCHER, WORKER, str(pid_file)]
    ending = ((None, 0.0), (signal.SIGINT, 0.1), (signal.SIGKILL, 10.0))
    monkeypatch.setattr("halfstep.train.processes.ending._ENDING", ending)
    running = RunningCell(cell, command, time_limit=0.0 if how == "the time limit" else None)
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.01)
    if how == "somebody":
        running.process.kill()
    while (result := running.poll()) is None:
        time.sleep(0.01)
    assert result.status == "crashed"
    assert ("killed by SIGKILL" if how == "somebody" else "stopped by --time-limit") in str(
        result.reason
    )
    assert is_gone(int(pid_file.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_process_whose_launcher_ended_while_it_was_starting_ends_too(tmp_path):
    late = {**os.environ, "HALFSTEP_LAUNCHER": "0"}
    program = [sys.executable, "-c", WORKER, str(tmp_path / "pid")]
    done = subprocess.run(program, env=late, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "pid").exists()


# Launches two processes of a shell in the place of halfstep's.
TWO_SHELLS = """
import sys
from halfstep.train.processes.launch import launch
sys.executable = sys.argv[1]
sys.exit(launch([], processes=2, max_restarts=0))
"""


def test_a_cell_of_which_one_process_is_killed_says_which(cell, tmp_path):
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\nif [ "$RANK" = 1 ]; then kill -9 $$; fi\nexec sleep 60\n')
    shell.chmod(0o755)
    result = run_cell(cell, [sys.executable, "-c", TWO_SHELLS, str(shell)])
    assert result.status == "crashed"
    said = r"exit code 1: rank 1 \(process \d+\) was killed by SIGKILL"
    assert re.fullmatch(said, str(result.reason))


def test_a_full_disk_is_named_even_where_nothing_could_be_said(cell, training, monkeypatch):
    training.behave(fp16="silent")
    full = type("Usage", (), {"free": 0})
    monkeypatch.setattr("halfstep.train.processes.ending.shutil.disk_usage", lambda _: full)
    reason = run_cell(cell, training(cell, "cpu")).reason
    assert f"the disk of {cell.directory} is full" in str(reason)
