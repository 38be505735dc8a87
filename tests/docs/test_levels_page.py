"""The table of docs/experiments/apex-levels.md: what Apex's levels set, and what came of them."""

import json
import re
from pathlib import Path

import pytest

from halfstep.apex.amp.properties import OPT_LEVELS
from halfstep.show.units import percent, points, small_share

HEADERS = (
    *("level", "weights", "master weights", "loss scale", "best %", "vs O0, points"),
    *("skipped steps", "unchanged weights", "gradient error"),
)
EXPERIMENTS = Path(__file__).parents[2] / "docs" / "experiments"


def sets(level):
    options = OPT_LEVELS[level]
    fp16 = options["cast_model_type"] is not None and "float16" in str(options["cast_model_type"])
    return [
        "fp16" if fp16 else "fp32",
        "yes" if options["master_weights"] else "no",
        "1" if options["loss_scale"] == 1.0 else str(options["loss_scale"]),
    ]


def table():
    compared = json.loads((EXPERIMENTS / "apex-levels" / "comparison.json").read_text())
    lines = [f"| {' | '.join(HEADERS)} |", "| --- " * len(HEADERS) + "|"]
    for row in compared["rows"]:
        level = row["recipe"].upper()
        means = {name: found and found["mean"] for name, found in row["measures"].items()}
        difference = row["difference"]
        to_first = (
            "-"
            if level == "O0"
            else f"{points(difference['mean'])} "
            f"[{points(difference['low'])}, {points(difference['high'])}]"
        )
        cells = [
            *sets(level),
            percent(means["best_accuracy"]),
            to_first,
            f"{means['skipped_steps']:g}",
            small_share(means["unchanged_share"]),
            small_share(means["newest.gradient_error"]),
        ]
        lines.append(f"| {level} | {' | '.join(cells)} |")
    return lines


@pytest.mark.parametrize("page", ["apex-levels.md", "apex-levels.zh.md"])
def test_the_table_is_apex_s_own_beside_the_comparison(page):
    text = (EXPERIMENTS / page).read_text()
    there = re.search(r"<!-- levels -->\n(.*?)<!-- /levels -->", text, re.DOTALL)
    assert there[1].splitlines() == table()
