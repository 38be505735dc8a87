"""The tables of docs/experiments/rates-on-digits.md are those of its runs, and its config loads."""

import csv
import re
from pathlib import Path

import pytest

from halfstep.train.config.files import load

EXPERIMENTS = Path(__file__).parents[2] / "docs" / "experiments"
PAGE = (EXPERIMENTS / "rates-on-digits.md").read_text()


def shown(run):
    if run["status"] == "finished":
        return f"{float(run['final_accuracy']):.1%}".replace("%", " %")
    broken = f"NaN at {float(run['first_nonfinite_step'] or 0):.0f}"
    if run["status"] != "collapsed":
        return broken
    return f"{broken}, collapsed at {re.search(r' step ([0-9]+)', run['reason'])[1]}"


def runs(optimizer):
    with (EXPERIMENTS / "rates-on-digits" / f"{optimizer}.csv").open() as file:
        return list(csv.DictReader(file))


def table(optimizer):
    cells = {(run["optimizer.lr"], run["recipe"]): shown(run) for run in runs(optimizer)}
    recipes = list(dict.fromkeys(recipe for _, recipe in cells))
    lines = [f"| rate | {' | '.join(recipes)} |", "| --- " * (len(recipes) + 1) + "|"]
    lines += [
        f"| {rate} | {' | '.join(cells[rate, each] for each in recipes)} |"
        for rate in dict.fromkeys(rate for rate, _ in cells)
    ]
    return lines


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_tables_are_those_of_the_runs(optimizer):
    shown_there = re.search(rf"<!-- {optimizer} -->\n(.*?)<!-- /{optimizer} -->", PAGE, re.DOTALL)
    assert shown_there[1].splitlines() == table(optimizer)


def test_pure_half_breaks_under_adamw_where_fp32_learns():
    found = {(run["optimizer.lr"], run["recipe"]): run for run in runs("adamw")}
    for (_, recipe), run in found.items():
        assert (run["status"] == "nonfinite") == (recipe in {"half-bn32", "o3"})
        if recipe == "half-bn32":
            assert run["cause"].startswith("OPTIMIZER_EPS_UNDERFLOWS")


def test_the_config_is_the_digits_in_larger_batches():
    config = load(str(EXPERIMENTS / "rates-on-digits.yaml"))
    assert config.batch_size == 128
    assert config.model == load("digits").model
