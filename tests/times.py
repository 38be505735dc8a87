"""`pytest --times`: the CPU time of each folder of tests, with the processes that it starts.

CPU time, for wall time also counts what else the machine does. conftest.py registers the plugin.
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from pathlib import Path

import pytest

TICK = 1 / os.sysconf("SC_CLK_TCK")
OUTSIDE = "imports and collection"
"""What a worker has used before its first test."""


def spent() -> float:
    """Return the CPU seconds of this process and of its descendants, living or not."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(_of_process(child) for child in _children(os.getpid()))
    return time.process_time() + ended.ru_utime + ended.ru_stime + living


class Times:
    """Measures tests where they run, and prints the table where the results come together."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._before = 0.0
        self._tests: Counter[str] = Counter()

    def _since(self) -> float:
        before, self._before = self._before, spent()
        # Nobody waits for the processes of a browser, so that their time is gone when they end.
        return max(0.0, self._before - before)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take the time so far."""
        seconds = self._since()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["collection"] = seconds
        else:
            self._tests[OUTSIDE] += seconds

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        """Take from a worker of xdist what no test's report holds."""
        self._tests[OUTSIDE] += getattr(node, "workeroutput", {}).get("collection", 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """Write into the last report of a test what the test has used."""
        report = yield
        if call.when == "teardown":
            report.cpu_seconds = self._since()
        return report

    def pytest_runtest_logreport(self, report) -> None:
        """Add a test."""
        self._tests[report.nodeid] += getattr(report, "cpu_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter) -> None:
        """Print the folders and the longest tests."""
        folders: Counter[str] = Counter()
        for test, seconds in self._tests.items():
            folders[str(Path(test.partition("::")[0]).parent) if "::" in test else test] += seconds
        terminalreporter.section("CPU seconds")
        for name, seconds in [*folders.most_common(), ("in all", folders.total())]:
            terminalreporter.line(f"{seconds:8.1f}  {name}")
        terminalreporter.section("longest tests in CPU seconds")
        for name, seconds in self._tests.most_common(self._longest):
            terminalreporter.line(f"{seconds:8.2f}  {name}")


def _of_process(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended since
        return 0.0
    own = sum(int(field) for field in fields[11:15]) * TICK  # with its children that have ended
    return own + sum(_of_process(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    try:
        files = list(Path(f"/proc/{pid}/task").glob("*/children"))
        return [int(child) for file in files for child in file.read_text().split()]
    except OSError:
        return []
