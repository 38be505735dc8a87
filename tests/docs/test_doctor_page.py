"""docs/doctor.md lists the causes that there are, and its example is what doctor says."""

import importlib
import json
import re
from pathlib import Path

import pytest

from halfstep.doctor.rules import rules

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "doctor.md").read_text()


def test_the_causes_are_those_of_the_rules():
    listed = re.search(r"<!-- causes -->\n(.*?)<!-- /causes -->", PAGE, re.DOTALL)[1]
    expected = ["| code | cause |", "| --- | --- |"]
    expected += [f"| `{rule.code}` | {rule.name} |" for rule in rules()]
    assert listed.splitlines() == expected


def test_the_translation_has_the_same_causes():
    page = (ROOT / "docs" / "doctor.zh.md").read_text()
    listed = re.search(r"<!-- causes -->\n(.*?)<!-- /causes -->", page, re.DOTALL)[1]
    assert re.findall(r"^\| `(\w+)`", listed, re.MULTILINE) == [rule.code for rule in rules()]


def test_a_new_cause_gets_its_row_in_both_tables(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(ROOT / "website")
    tables = importlib.import_module("cause_tables")
    pages = {name: (ROOT / "docs" / name).read_text() for name in ("doctor.md", "doctor.zh.md")}
    for name, page in pages.items():
        rows = [line for line in page.splitlines(keepends=True) if "`LOG_OF_ZERO` |" not in line]
        (tmp_path / name).write_text("".join(rows))
    monkeypatch.setattr(tables, "DOCS", tmp_path)
    tables.main()
    assert (tmp_path / "doctor.md").read_text() == PAGE
    assert "| `LOG_OF_ZERO` | the logarithm of zero |" in (tmp_path / "doctor.zh.md").read_text()
    assert capsys.readouterr().out == "LOG_OF_ZERO has no name in Chinese\n"


MEASURED = {
    "overhead": "doctor_overhead",
    "programs cost": "doctor_programs_cost",
    "large programs": "doctor_large_programs",
}


@pytest.mark.parametrize("mark", MEASURED)
def test_the_figures_are_those_of_the_results(mark, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = importlib.import_module(MEASURED[mark])
    shown = re.search(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", PAGE, re.DOTALL)[1]
    results = benchmark.RESULTS
    expected = benchmark.table(json.loads(results.read_text())) if results.exists() else []
    assert shown.splitlines() == expected


README = (ROOT / "README.md").read_text()
SITE = re.compile(r"^ +(examples/\w+\.py):(\d+)(?:\n)? +(.+)$", re.MULTILINE)


@pytest.mark.parametrize(("text", "count"), [(PAGE, 3), (README, 1)], ids=["page", "README"])
def test_the_lines_of_the_examples_say_what_they_are_quoted_with(text, count):
    sites = SITE.findall(text)
    assert len(sites) == count
    for path, line, said in sites:
        assert (ROOT / path).read_text().splitlines()[int(line) - 1].strip() == said
