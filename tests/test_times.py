"""The CPU seconds that `pytest --times` prints."""

import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from times import TICK, Times, spent

BUSY = """
import time
while time.process_time() < 0.1:
    pass
print(flush=True)
input()
"""


class Lines:
    """Stands for pytest's terminal reporter."""

    def __init__(self):
        self.lines = []
        self.section = self.line = self.lines.append


def test_processes_count_while_they_run_and_afterwards():
    before = spent()
    command = [sys.executable, "-S", "-c", BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        running = spent()
        child.communicate(b"\n")
    ended = spent()
    assert running - before >= 0.1 - 2 * TICK
    assert ended >= running - 2 * TICK
    own = resource.getrusage(resource.RUSAGE_SELF)
    assert ended > own.ru_utime + own.ru_stime


def test_processes_that_nobody_waits_for_take_nothing_back_when_they_end(monkeypatch):
    times, reports = Times(1), []
    at = iter((2.0, 5.0, 1.0, 1.5))
    monkeypatch.setattr("times.spent", lambda: next(at))
    times.pytest_collection_finish(SimpleNamespace(config=SimpleNamespace(workeroutput={})))
    for _ in range(3):
        hook = times.pytest_runtest_makereport(None, SimpleNamespace(when="teardown"))
        next(hook)
        with pytest.raises(StopIteration) as made:
            hook.send(SimpleNamespace())
        reports.append(made.value.value.cpu_seconds)
    assert reports == [3.0, 0.0, 0.5]


def test_the_table_sums_tests_by_folder_and_names_the_longest():
    times, out = Times(1), Lines()
    for nodeid, seconds in (("a/b/test_x.py::one", 2.0), ("a/b/test_y.py::two[c/d]", 0.5)):
        times.pytest_runtest_logreport(SimpleNamespace(nodeid=nodeid, cpu_seconds=seconds))
        times.pytest_runtest_logreport(SimpleNamespace(nodeid=nodeid))  # of its set-up
    times.pytest_testnodedown(SimpleNamespace(workeroutput={"collection": 1.0}))
    times.pytest_terminal_summary(out)
    assert [line.split(maxsplit=1) for line in out.lines if line.startswith(" ")] == [
        ["2.5", "a/b"],
        ["1.0", "imports and collection"],
        ["3.5", "in all"],
        ["2.00", "a/b/test_x.py::one"],
    ]
