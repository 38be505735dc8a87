"""The table of docs/experiments/processes-workers-threads.md is that of its measurements."""

import json
import re
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "docs" / "experiments"
BENCHES = ("launch", "loader", "threads")


def measured(bench):
    return json.loads((EXPERIMENTS / "processes-workers-threads" / f"{bench}.json").read_text())


def shown(figures, digits):
    low, median, high = (f"{figures[key]:.{digits}f}" for key in ("low", "median", "high"))
    return median if low == median == high else f"{median} [{low}, {high}]"


def table():
    lines = ["| setting | measured | figure | speed |", "| --- | --- | --- | --- |"]
    for bench in BENCHES:
        found = measured(bench)
        digits = {"launch": 1, "loader": 0, "threads": 2}[bench]
        for name, row in found["rows"].items():
            setting = name if found["setting"] == "start" else f"{found['setting']}={name}"
            figure, speed = shown(row["figure"], digits), shown(row["speed"], 2)
            lines.append(f"| {setting} | {found['quantity']} | {figure} | {speed}x |")
    return lines


@pytest.mark.parametrize(
    "page", ["processes-workers-threads.md", "processes-workers-threads.zh.md"]
)
def test_the_table_is_that_of_the_measurements(page):
    text = (EXPERIMENTS / page).read_text()
    there = re.search(r"<!-- benches -->\n(.*?)<!-- /benches -->", text, re.DOTALL)
    assert there[1].splitlines() == table()


def test_the_speeds_in_the_prose_are_measured_ones():
    text = (EXPERIMENTS / "processes-workers-threads.md").read_text()
    for bench, setting in (("launch", "torchrun"), ("threads", "2")):
        assert f" {measured(bench)['rows'][setting]['speed']['median']:.2f} times" in text
    scaling = json.loads(
        (EXPERIMENTS.parents[1] / "benchmarks" / "results" / "scaling.json").read_text()
    )
    assert f" {1 / scaling['start']['torchrun_to_spawn']:.2f} times" in text
