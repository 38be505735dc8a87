"""Imports at the start of a command: no collections while they come."""

import atexit
import gc
import json
import subprocess
import sys

import pytest

from halfstep.cli.start_up import without_collections


@pytest.fixture
def frozen(monkeypatch):
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(gc.isenabled()))
    monkeypatch.setattr(atexit, "register", lambda function: None)
    return calls


def test_nothing_is_collected_while_torch_is_imported_whatever_comes_of_it(monkeypatch, frozen):
    monkeypatch.delitem(sys.modules, "torch")
    with without_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), without_collections():
        raise ImportError
    assert gc.isenabled()
    assert frozen == [False, False], "before anything else is made"


def test_a_process_that_has_torch_goes_on_collecting(frozen):
    with without_collections():
        assert gc.isenabled()
    assert frozen == []


LEAVING = """
import atexit, ctypes, os
from halfstep.cli.start_up import without_collections

ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).malloc_stats)  # prints on stderr; nanobind uses it too
with without_collections():
    atexit.register(os.write, 2, b"a library's word")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_stats is glibc's")
def test_what_is_not_collected_is_not_told_when_a_command_ends():
    ended = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, check=True)
    assert ended.stderr == b"a library's word"


REFUSED = """
import json, sys
from halfstep.cli import main

for arguments in json.loads(sys.argv[1]):
    code = main(arguments)
    assert code == 2, (arguments, code)
    assert "torch" not in sys.modules, arguments
print(len(sys.modules))
"""
MOST_MODULES = 700
"""A process with torch has more than 2,000 modules; the libraries of the command line have 400."""


def test_what_is_refused_without_torch_is_refused_before_it_is_imported(run, tmp_path):
    """`run` is a finished run of `digits` under its usual name, in the working directory."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis").touch()
    config = str(run / "config.yaml")
    refused = [
        ["train", config, "--out", str(run)],
        ["train", config, "--out", str(run), "--processes", "2"],
        ["train", "digits", "--out", str(run), "--epochs", "7"],
        ["train", "digits", "--out", "foreign"],
        ["train", "digits", "--resume", "runs/none"],
        ["train", "digits", "--epochs", "0"],
        ["eval", "nowhere"],
        ["predict", "nowhere", "a.png"],
        ["predict", str(run), "a.png", "--ensemble", "nowhere"],
        ["export", "nowhere"],
        ["compare", "digit"],
        ["advise", "digit"],
        ["advise", "digits", "--gpu", "h101"],
        ["advise", "digits", "--cost-only"],
        ["advise", "digits", "--recipes", "fp61"],
        ["bench", "step", "digit"],
        ["data", "check", "digit"],
        ["data", "folds", "none.csv"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, json.dumps(refused)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "runs/digits/fp32-seed0' holds a finished run" in done.stderr
    assert len(done.stderr.splitlines()) == len(refused)
    assert int(done.stdout) < MOST_MODULES


OVER = """
import sys
from halfstep.cli import main

code = main(["train", sys.argv[1], "--out", sys.argv[2], "--resume", "auto"])
sys.exit(code or ("torch" in sys.modules) or len(sys.modules) > int(sys.argv[3]))
"""


def test_a_finished_run_is_resumed_by_its_summary_alone(halfstep, run):
    config = run / "config.yaml"
    told = halfstep("train", config, "--out", run, "--resume", "auto")
    assert told[0] == 0
    arguments = [sys.executable, "-c", OVER, config, run, str(MOST_MODULES)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == told
