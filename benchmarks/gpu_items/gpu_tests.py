"""Item `tests`: the tests that are skipped without a GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from gpu_items import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row

REASON = "needs a GPU"
"""What the reason of their mark `skipif` says."""
MARK = re.compile(rf'skipif\(.*reason="{REASON}"')
RESERVE = 6.0
"""Seconds before the deadline in which no test begins."""


def rows(at: At) -> Iterator[Row]:
    """Yield how many passed, failed and were skipped, with the reasons."""
    files = [
        str(file)
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if MARK.search(file.read_text())
    ]
    seen = Seen(at)
    project = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-o", "addopts=")
    options = ("-q", "-p", "no:cacheprovider", "-m", "not slow", "--continue-on-collection-errors")
    code = pytest.main([*project, *options, *(files[:2] if at.toy else files)], plugins=[seen])
    if not seen.chosen:
        raise RuntimeError(f"pytest found no test that needs a GPU, and ended with {code!r}")
    yield seen.row()


class Seen:
    """A plugin of pytest that leaves out other tests, and records how these end.

    Attributes:
        chosen: The number of tests that need a GPU.
    """

    def __init__(self, at: At) -> None:
        self._at = at
        self._session: pytest.Session | None = None
        self.chosen = 0
        self._ended: dict[str, str] = {}
        self._reasons: dict[str, dict[str, str]] = {"failed": {}, "skipped": {}}

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Note the session, to stop it."""
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the tests that need no GPU."""
        items[:] = [item for item in items if needs_gpu(item)]
        self.chosen = len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that cannot be collected, for example because a package is missing."""
        if report.failed:
            self._end(report, "failed")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record how a test ended; set-up and teardown may fail too."""
        if report.failed or report.skipped:
            self._end(report, report.outcome)
        elif report.when == "call":
            self._ended.setdefault(report.nodeid, "passed")

    def pytest_runtest_logfinish(self) -> None:
        """Begin no further test if the time is nearly over."""
        if self._session is not None and self._at.left() < RESERVE:
            self._session.shouldstop = "the time of the item is over"

    def _end(self, report: Any, how: str) -> None:
        self._ended[report.nodeid] = how
        text = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longreprtext
        lines = [line for line in text.splitlines() if line.strip()] or [""]
        errors = [line for line in lines if re.match(r"E +\S", line)] or lines
        self._reasons[how][report.nodeid] = errors[-1 if errors is lines else 0].strip()[:300]

    def row(self) -> Row:
        """Return the counts and the reasons."""
        hows = list(self._ended.values())
        counts = {how: hows.count(how) for how in ("passed", "failed", "skipped")}
        not_run = self.chosen - sum("::" in node for node in self._ended)
        reasons = {f"reasons_of_{how}": found for how, found in self._reasons.items()}
        return {"of": "tests that need a GPU", **counts, "not_run": not_run, **reasons}


def needs_gpu(item: pytest.Item) -> bool:
    """Tell whether a test is skipped without a GPU."""
    marks = item.iter_markers("skipif")
    return any(REASON in mark.kwargs.get("reason", "") for mark in marks)
