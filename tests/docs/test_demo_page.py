"""The README's demo: one command that settles its question; the README quotes its result."""

import json
import re
from pathlib import Path

import pytest

from halfstep.compare.plan.arguments import SEEDS
from halfstep.compare.rows.verdict import NO_WORSE, WORSE
from halfstep.show.units import points

ROOT = Path(__file__).parents[2]
FOUND = json.loads((ROOT / "docs" / "experiments" / "demo" / "comparison.json").read_text())
ANSWERS = {each["label"]: each["answer"] for each in FOUND["verdicts"]}
MUST_BE = {"fp16": NO_WORSE, "bf16": NO_WORSE, "fp32-again": NO_WORSE, "control": WORSE}


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return __import__("demo")


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_demo_is_one_command_with_its_own_set_up(page, demo):
    (line,) = re.findall(r"<!-- demo -->\n```bash\n(.*)\n```", (ROOT / page).read_text())
    installs, asks = line.rsplit(" && ", 1)
    assert installs.startswith("python3 -m venv .venv && .venv/bin/pip install")
    assert asks == " ".join([".venv/bin/halfstep", *demo.command()])
    assert demo.command() == ["compare", "digits", "--aa", "--control"]


def test_its_committed_result_is_settled():
    assert ANSWERS == MUST_BE
    assert (FOUND["config"], FOUND["options"], FOUND["margin"]) == ("digits", [], 0.01)
    assert FOUND["seeds"] == list(range(SEEDS))
    assert FOUND["looks"] == [SEEDS]  # one look, planned before the first run
    assert FOUND["plans"] == [[SEEDS]]
    assert all(each["status"] == "finished" for each in FOUND["cells"])
    assert len(FOUND["cells"]) == SEEDS * 5


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_readme_quotes_its_intervals(page):
    text = " ".join((ROOT / page).read_text().split())
    for row in FOUND["rows"]:
        if row["recipe"] in {"fp16", "bf16"}:
            low, high = (points(row["difference"][end]) for end in ("low", "high"))
            assert f"[{low}, {high}]" in text


def test_the_table_and_the_report_are_those_of_the_result():
    folder = ROOT / "docs" / "experiments" / "demo"
    for name in ("table.md", "report.html"):
        text = (folder / name).read_text()
        for verdict in FOUND["verdicts"]:
            assert verdict["answer"] in text
            assert verdict["finding"].split(" [")[0] in text


def test_other_seeds_have_the_same_answers(demo):
    result = json.loads(demo.RESULTS.read_text())
    assert result["command"] == " ".join(["halfstep", *demo.command()])
    assert len({tuple(each["seeds"]) for each in result["sets"]}) == 3
    for each in result["sets"]:
        assert {label: row["answer"] for label, row in each["answers"].items()} == MUST_BE
    if result["machine"]["quiet"]:
        assert result["seconds"] <= 120
    assert demo.answers(FOUND).keys() == MUST_BE.keys()
