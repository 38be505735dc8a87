"""Imports at the start of a command: no collections while they come."""

import atexit
import gc
import sys

import pytest

from halfstep.cli.start_up import without_collections


@pytest.fixture
def at_exit():
    return []


@pytest.fixture
def frozen(monkeypatch, at_exit):
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(gc.isenabled()))
    monkeypatch.setattr(atexit, "register", at_exit.append)
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


def test_what_was_left_out_of_collections_is_let_go_at_exit(monkeypatch, frozen, at_exit):
    monkeypatch.delitem(sys.modules, "torch")
    with without_collections():
        pass
    assert at_exit == [gc.unfreeze], "or Triton's bindings report thousands of leaked objects"


def test_a_process_that_has_torch_goes_on_collecting(frozen):
    with without_collections():
        assert gc.isenabled()
    assert frozen == []
