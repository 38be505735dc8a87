"""CONTRIBUTING.md names the tests of every folder, with what they took in a whole run."""

import re
from pathlib import Path

import pytest

import durations
import halfstep

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| `(tests/[^`]+)` \| (\d+|under 1) \| .*\|$", re.MULTILINE)

REPORT = """<testsuites><testsuite>
<testcase classname="tests.cli.test_train.TestOptions" name="one" time="20.0" />
<testcase classname="tests.cli.test_train" name="two" time="9.6" />
<testcase classname="tests.cli.test_runs" name="three" time="4.4" />
<testcase classname="tests.train.loop.test_loop" name="four" time="171.2" />
<testcase classname="tests.train.test_kept" name="five" time="6" />
<testcase classname="tests.test_formats" name="six" time="0.2" />
<testcase classname="" name="tests.test_lightning" time="0" />
</testsuite></testsuites>"""


def test_every_folder_of_the_package_has_a_row_and_its_tests_exist():
    named = {folder: tests for folder, tests, _ in ROW.findall(PAGE)}
    package = Path(halfstep.__file__).parent
    inside = {path.name for path in package.iterdir() if path.is_dir()} - {"__pycache__"}
    assert {Path(folder).name for folder in named if folder.startswith("src/")} == inside
    for folder, tests in named.items():
        assert (ROOT / folder).is_dir()
        assert (ROOT / tests).exists()
    assert list(named.items()) == durations.rows()


@pytest.fixture
def lines(tmp_path):
    report = tmp_path / "tests.xml"
    report.write_text(REPORT)
    return durations.table(durations.seconds(report))


def test_a_row_sums_its_tests_and_names_what_takes_most(lines):
    assert "| `src/halfstep/cli` | `tests/cli` | 34 | test_train 30 |" in lines
    assert "| `src/halfstep/train` | `tests/train` | 180 | loop 170, test_kept 6 |" in lines
    assert "| `src/halfstep/formats` | `tests/test_formats.py` | under 1 |  |" in lines


def test_the_page_is_written_between_its_marks(tmp_path, monkeypatch):
    page, report = tmp_path / "page.md", tmp_path / "tests.xml"
    page.write_text("before\n<!-- times -->\nold\n<!-- /times -->\nafter\n")
    report.write_text(REPORT)
    monkeypatch.setattr(durations, "PAGE", page)
    durations.main(str(report))
    first, *table, last = page.read_text().split("\n\n")[0].splitlines()[1:-1]
    assert (first, last) == ("<!-- times -->", "<!-- /times -->")
    assert table == durations.table(durations.seconds(report))
