"""Programs that a server forks are as those that were started anew, but for their imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from compare.processes import is_gone

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")

PROGRAM = """
import atexit, json, os, signal, sys, threading, time

def open_files():
    files = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    return [os.path.basename(os.path.realpath(file)) for file in files]

if __name__ == "__main__":
    what = sys.argv[1]
    atexit.register(print, "at exit")
    if what == "who":
        import numpy as np
        said = {"parent": os.getppid(), "arguments": sys.argv[1:], "main": __spec__.name}
        said |= {"GIVEN": os.environ.get("GIVEN"), "in": os.getcwd(), "read": sys.stdin.read()}
        said |= {"imported": "colorsys" in sys.modules, "drawn": np.random.random(4).tolist()}
        said |= {"torch": sys.modules["torch"].threads} if len(sys.argv) < 3 else {}
        said |= {"threads": threading.active_count(), "kept": "kept" in open_files()}
        print(json.dumps(said))
    elif what == "code":
        sys.exit(3)
    elif what == "line":
        sys.exit("a reason")
    elif what == "raises":
        raise LookupError("no such thing")
    elif what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "thread":
        threading.Thread(target=lambda: (time.sleep(0.05), print("late"))).start()
    elif what == "waits":
        print("waiting", flush=True)
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            sys.exit(5)
    elif what == "stays":
        from halfstep.train.processes.launch import end_with_launcher
        end_with_launcher()
        print("waiting", flush=True)
        time.sleep(60)
"""

TORCH = """
threads = None

def set_num_threads(count):
    global threads
    threads = count
"""
"""In place of torch, whose import is slow."""

ASKING = """
import json, os, pathlib, signal, subprocess, sys, time
from halfstep.compare.cells import warm

said = {}

def start(what, *more, **variables):
    with open(f"{what}.out", "wb") as out, open(f"{what}.err", "wb") as err:
        return python.start(
            [sys.executable, "-m", "program", what, *more],
            outputs=(out.fileno(), err.fileno()), environment=variables, keep_open=[kept.fileno()],
        )

def waiting(what):
    while "waiting" not in pathlib.Path(f"{what}.out").read_text():
        time.sleep(0.01)

kept = open("kept", "w+")
kept.write("1234")
kept.flush()
with warm.server(("colorsys", "numpy.random", "torch")) as python:
    server = python._pid
"""

TO_THE_END = """
    for name in ("code", "line", "raises", "killed", "segfaults", "thread"):
        said[name] = start(name).wait(60)
    here = os.path.realpath(".")
    for name in ("first", "second"):
        who = start("who", "an argument", GIVEN=name)
        said[name] = [who.wait(60), json.loads(open("who.out").read().splitlines()[0])]
    said["me"] = [os.getpid(), here]
    said["early"] = start("who", MKL_NUM_THREADS="1") is None
    start("who", OMP_NUM_THREADS="3").wait(60)
    said["threads"] = json.loads(open("who.out").read().splitlines()[0])["torch"]
    waits = start("waits")
    waiting("waits")
    try:
        waits.wait(0.01)
    except subprocess.TimeoutExpired:
        said["late"] = waits.poll()
    os.kill(server, signal.SIGINT)  # as a terminal does, which sends it to all
    waits.send_signal(signal.SIGINT)
    said["interrupted"] = waits.wait(60)
    waits = start("waits")
    waiting("waits")
    os.kill(server, signal.SIGKILL)
    said["without a server"] = start("code") is None
    waits.send_signal(signal.SIGINT)
    said["outlives the server"] = waits.wait(60)
print(json.dumps(said))
"""

KILLED = """
    stays = start("stays", HALFSTEP_LAUNCHER=str(os.getpid()))
    waiting("stays")
    print(json.dumps([server, stays.pid]), flush=True)
    time.sleep(60)
"""


def asking(folder: Path, more: str) -> subprocess.Popen[str]:
    """Start a process that has imported nothing, and asks a server for programs."""
    (folder / "program.py").write_text(dedent(PROGRAM))
    (folder / "torch.py").write_text(TORCH)
    return subprocess.Popen(
        [sys.executable, "-c", ASKING + more], cwd=folder, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("asking")
    process = asking(folder, TO_THE_END)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(out), folder


@pytest.mark.parametrize(
    ("program", "code", "error"),
    [
        ("code", 3, ""),
        ("line", 1, "a reason\n"),
        ("raises", 1, "LookupError: no such thing\n"),
        ("killed", -signal.SIGKILL, ""),
        ("segfaults", -signal.SIGSEGV, ""),
        ("thread", 0, ""),
    ],
)
def test_a_program_ends_with_its_own_code_and_last_words(seen, program, code, error):
    said, folder = seen
    assert said[program] == code
    assert (folder / f"{program}.err").read_text().endswith(error)


def test_what_was_registered_for_the_exit_is_called_after_the_last_thread(seen):
    assert (seen[1] / "thread.out").read_text() == "late\nat exit\n"


def test_a_program_is_the_child_of_the_one_that_asked(seen):
    said, _ = seen
    pid, folder = said["me"]
    for name in ("first", "second"):
        code, who = said[name]
        assert (code, who) == (
            0,
            {
                "drawn": who["drawn"],
                "parent": pid,
                "arguments": ["who", "an argument"],
                "main": "program",
                "GIVEN": name,
                "in": folder,
                "read": "",
                "imported": True,
                "threads": 1,
                "kept": True,
            },
        )


def test_no_two_programs_draw_the_same_random_numbers(seen):
    assert seen[0]["first"][1]["drawn"] != seen[0]["second"][1]["drawn"]


def test_variables_that_libraries_read_while_imported_are_left_to_a_process_that_imports(seen):
    assert seen[0]["early"]


def test_the_number_of_threads_needs_no_new_import(seen):
    assert seen[0]["threads"] == 3


def test_ctrl_c_is_for_the_programs_and_not_for_their_server(seen):
    said, _ = seen
    assert (said["late"], said["interrupted"]) == (None, 5)


def test_a_program_outlives_its_server(seen):
    said, _ = seen
    assert said["without a server"]
    assert said["outlives the server"] == 5


def test_neither_server_nor_program_outlives_a_killed_asker(tmp_path):
    process = asking(tmp_path, KILLED)
    pids = json.loads(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert all(map(is_gone, pids))
