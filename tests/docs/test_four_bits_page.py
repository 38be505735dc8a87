"""The tables of docs/experiments/four-bits.md are those of benchmarks/results/four_bits.json."""

import json
import re
from pathlib import Path

import pytest

from halfstep.show.units import percent, points

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "experiments" / name for name in ("four-bits.md", "four-bits.zh.md")]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "four_bits.json").read_text())
HEADERS = (
    *("recipe", "digits, best %", "vs bf16, points", "transformer, validation loss", "vs bf16"),
    *("CPU ms a step", "times bf16"),
)


def table():
    lines = [f"| {' | '.join(HEADERS)} |", "| --- " * len(HEADERS) + "|"]
    for recipe, row in RESULT["digits"].items():
        text, cost = RESULT["transformer"][recipe], RESULT["step_cost"][recipe]
        paired, loss, change = row["difference"], text["validation_loss"], text["difference"]
        low, high = points(paired["low"]), points(paired["high"])
        cells = [
            recipe,
            percent(row["best_accuracy"]["mean"]),
            "-" if recipe == "bf16" else f"{points(paired['mean'])} [{low}, {high}]",
            f"{loss['mean']:.4f} ± {loss['sd']:.4f}",
            "-" if recipe == "bf16" else f"{change['mean']:+.4f} ± {change['sd']:.4f}",
            f"{cost['cpu_ms']:.1f}",
            f"{cost['ratio']:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_table_is_that_of_the_result(page):
    there = re.search(r"<!-- four bits -->\n(.*?)<!-- /four bits -->", page.read_text(), re.DOTALL)
    assert there[1].splitlines() == table()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_figures_in_the_prose_are_those_of_the_result(page):
    text, comparison = page.read_text(), RESULT["comparison"]
    assert comparison["command"] in text
    assert f" {comparison['seconds']:.0f} " in text
    assert f"{comparison['cpu_seconds']:.0f} " in text
    assert RESULT["environment"]["cpu"] in text
    for recipe in ("mxfp8", "nvfp4"):
        assert RESULT["transformer"][recipe]["layers"] in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_comparisons_in_the_prose_are_those_of_the_result(page):
    text = page.read_text()
    changes = {name: row["difference"]["mean"] for name, row in RESULT["transformer"].items()}
    assert f"{changes['mxfp4']:.3f}" in text
    assert 0.4 < changes["nvfp4"] / changes["mxfp4"] < 0.6
    assert all(abs(changes[name]) < 0.0015 for name in ("fp8", "mxfp8"))
    intervals = [row["difference"] for name, row in RESULT["digits"].items() if name != "bf16"]
    assert all(each["low"] < 0 < each["high"] for each in intervals)
    assert f"{-100 * min(each['low'] for each in intervals):.1f} " in text
    assert f" {max(cost['ratio'] for cost in RESULT['step_cost'].values()):.2f} " in text


def test_a_block_format_costs_at_most_three_times_bf16_s_step():
    assert all(cost["ratio"] <= 3 for cost in RESULT["step_cost"].values())
