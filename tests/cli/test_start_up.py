"""Imports at the start of a command: no collections while they come."""

import atexit
import gc
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
