"""A report for a browser to open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from halfstep.compare.output.tables import write_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from halfstep.compare.plan.grid import Grid


@pytest.fixture
def report(make_grid: Callable[..., Grid], fill: Callable[..., Any]) -> Path:
    """A comparison with a non-finite, a crashed and a rehearsed row, over two points."""
    points = (("batch_size=256", "optimizer.lr=0.1"), ("batch_size=1024", "optimizer.lr=0.4"))
    grid = make_grid(("fp32", "fp16", "bf16", "o3"), (0, 1, 2), points=points)
    directory = grid.cells[0].directory.parent
    write_tables(directory, grid, fill(grid))
    return directory / "report.html"


@pytest.fixture
def open_report(chromium: Any, report: Path) -> Iterator[Callable[..., Any]]:
    """Open the report in a window of a width; what goes wrong in it is in `page.wrong`."""
    contexts = []

    def open_at(width: int = 1200, theme: str = "light") -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.wrong = []
        page.on("console", lambda said: page.wrong.append(said.text))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("requestfailed", lambda request: page.wrong.append(request.url))
        page.goto(report.as_uri())
        page.wait_for_selector("#charts figure svg")
        return page

    yield open_at
    for context in contexts:
        context.close()
