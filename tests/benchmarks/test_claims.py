"""A benchmark is kept for a claim of a page or of the package, and a result for both."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@cache
def claims() -> str:
    """Return the text of all that can state a figure, and of the tests that compare the pages."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    files = [*pages, *ROOT.glob("src/**/*.py"), *ROOT.glob("tests/docs/*.py")]
    return "\n".join(file.read_text() for file in files)


def is_claimed(name: str) -> bool:
    """Whether a script or its result is named, with the ending or without."""
    return re.search(rf"[/\"]{re.escape(name)}(\.py|\.json)?[`\"\s),;]", claims()) is not None


def test_every_benchmark_is_for_a_claim(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import campaign

    names = {each.script: (Path(each.script).stem, each.results.stem) for each in campaign.EVERY}
    assert [script for script, names in names.items() if not any(map(is_claimed, names))] == []


@pytest.mark.parametrize("name", ["no_such_benchmark", "loade", "oader"])
def test_what_no_page_names_is_not_claimed(name):
    assert not is_claimed(name)


def test_every_result_is_of_a_script_or_named_on_a_page():
    scripts = "\n".join(file.read_text() for file in ROOT.glob("benchmarks/**/*.py"))
    results = [file for file in RESULTS.rglob("*") if file.is_file()]
    assert len(results) > 30
    used = re.compile(r"[\w.]+\.(?:json|log)\b|(?<=\")\w+(?=\")")
    known = set(used.findall(scripts)) | set(used.findall(claims()))
    items = RESULTS / "gpu" / "items"  # one file for each item of the queue
    assert [
        file.name
        for file in results
        if not {file.name, file.stem} & known and not file.is_relative_to(items)
    ] == []
