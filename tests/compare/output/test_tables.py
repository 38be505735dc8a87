import json
import sys

import pytest

from halfstep.compare.output.tables import export, parse_exports, write_tables


@pytest.fixture
def filled(make_grid, fill):
    grid = make_grid(("fp32", "fp16", "o3"), (0, 1))
    return grid.cells[0].directory.parent, grid, fill(grid)


def test_every_kind_of_table_is_written(filled):
    directory, _, _ = filled
    write_tables(*filled)
    assert json.loads((directory / "comparison.json").read_text())["config"] == "digits"
    assert (directory / "table.md").read_text().startswith("# digits on cpu, 2 seeds\n")
    assert r"\begin{tabular}" in (directory / "table.tex").read_text()
    assert len((directory / "cells.csv").read_text().splitlines()) == 7
    assert (directory / "report.html").read_text().startswith("<!doctype html>")


def test_exports_are_checked_before_anything_runs(monkeypatch):
    assert parse_exports(None) == ()
    with pytest.raises(ValueError, match=r"allowed: parquet, png.*did you mean 'parquet'"):
        parse_exports("parquett")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'halfstep\[plots\]'"):
        parse_exports("png")


def test_exports_write_pictures_and_parquet(filled):
    pytest.importorskip("matplotlib")
    pytest.importorskip("pyarrow")
    directory, _, _ = filled
    names = export(*filled, parse_exports("png, parquet"))
    assert names == ["curves.png", "tradeoff.png", "cells.parquet"]
    for name in names[:2]:
        assert (directory / name).read_bytes().startswith(b"\x89PNG")
