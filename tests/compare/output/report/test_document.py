"""The page machinery under a report that is no comparison: that of a bench, in a browser."""

import pytest

from halfstep.bench.outcome import Subject
from halfstep.bench.report import page
from halfstep.bench.sweep import Quantity, Sweep


@pytest.fixture
def report(tmp_path):
    """A report of a bench with a chart; `open_report` opens it."""
    subject = Subject("loader", "digits", (), "cpu", {"device_name": "Imaginary CPU"})
    sweep = Sweep("data.workers", ("0", "2", "10"), Quantity("images /s", "more", "{:.0f}".format))
    outcome = sweep.outcome(subject, [[300, 310], [90, 95], [120, 120]])
    file = tmp_path / "report.html"
    file.write_text(page(outcome))
    return file


def rows(page):
    return page.locator("#measured tbody tr:not([hidden]) th").all_text_contents()


def test_tables_sort_and_filter_without_a_list_of_statuses(open_report):
    page = open_report()
    assert page.wrong == []
    page.click("#measured thead button:text-is('images /s')")
    assert rows(page) == ["2", "10", "0"]
    page.click("#measured thead button:text-is('data.workers')")
    assert rows(page) == ["0", "2", "10"]
    page.fill("[data-filters=measured]", "305")
    assert rows(page) == ["0"]
    assert page.wrong == []


def test_a_chart_says_what_it_runs_across_and_its_lines_can_be_taken_out(open_report):
    page = open_report(400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.locator("#charts .plot").first.press("Home")
    assert page.text_content("#charts figcaption span") == "at data.workers 0"
    assert page.locator("#charts .curve").count() == 3
    page.locator("#legend button").first.click()
    assert page.locator("#charts .curve").count() == 2
    ticks = page.locator("#charts text[text-anchor=middle]").all_text_contents()
    assert all(float(tick).is_integer() for tick in ticks)
