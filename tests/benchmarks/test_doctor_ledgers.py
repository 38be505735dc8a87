"""The programs of doctor's ledgers: what their truth says, and how printed changes are applied."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield __import__("doctor_ledgers")
    sys.modules.pop("doctor_ledgers")


@pytest.mark.parametrize(
    ("programs", "broken", "healthy"),
    [
        ("ledger_programs", 48, 48),
        ("further_programs", 32, 20),
        ("unseen_programs", 365, 138),
        ("shape_programs", 166, 99),
    ],
)
def test_each_ledger_has_its_programs(script, programs, broken, healthy):
    kinds = []
    for ledger in script.SETS[programs]:
        folder = BENCHMARKS / programs / ledger
        truth = json.loads((folder / "truth.json").read_text())
        assert {path.name for path in folder.glob("*.py")} == {row["file"] for row in truth}
        kinds += [row["broken"] for row in truth]
        for row in truth:
            if row["broken"]:
                assert (folder / row["mended"]).exists()
    assert (kinds.count(True), kinds.count(False)) == (broken, healthy)


PROGRAM = """\
for batch in batches:
    optimizer.zero_grad()
    loss(batch).backward()
    if full:
        optimizer.step()
"""
MENDED = """\
for batch in batches:
    loss(batch).backward()
    if full:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_change_moves_a_line_to_another_place(script, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    change = [
        "- optimizer.zero_grad()",
        "@ train.py:5",
        "  optimizer.step()",
        "+ optimizer.zero_grad()",
    ]
    assert script.applied(program, {"site": {"line": 2}, "change": change}) == MENDED
    wrong = {"site": {"line": 3}, "change": change}
    assert script.applied(program, wrong) is None


def test_totals_count_by_ledger(script):
    rows = [
        {"program": "rates/b01", "found": ["A"], "named": True, "change": "mends"},
        {"program": "rates/b02", "found": [], "named": False},
        {"program": "rates/h01", "found": ["A"]},
    ]
    counted = script.totals(rows)["rates"]
    assert counted == {
        "broken": 2,
        "named": 1,
        "healthy": 1,
        "alarms": 1,
        "changes of lines": 1,
        "applied and mended": 1,
    }
