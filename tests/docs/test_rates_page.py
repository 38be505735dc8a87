"""The table of docs/experiments/rates-on-digits.md is that of its runs, and its config loads."""

import csv
import re
from pathlib import Path

from halfstep.train.config.files import load

EXPERIMENTS = Path(__file__).parents[2] / "docs" / "experiments"
PAGE = (EXPERIMENTS / "rates-on-digits.md").read_text()


def shown(run):
    if run["status"] == "finished":
        return f"{float(run['final_accuracy']):.1%}".replace("%", " %")
    collapsed = f", collapsed at {run['steps']}" if run["status"] == "collapsed" else ""
    return f"NaN at {run['first_nonfinite_step']}{collapsed}"


def test_the_table_is_that_of_the_runs():
    with (EXPERIMENTS / "rates-on-digits" / "runs.csv").open() as file:
        runs = {(run["lr"], run["recipe"]): shown(run) for run in csv.DictReader(file)}
    recipes = list(dict.fromkeys(recipe for _, recipe in runs))
    lines = [f"| rate | {' | '.join(recipes)} |", "| --- " * (len(recipes) + 1) + "|"]
    lines += [
        f"| {rate} | {' | '.join(runs[rate, each] for each in recipes)} |"
        for rate in dict.fromkeys(rate for rate, _ in runs)
    ]
    table = re.search(r"<!-- runs -->\n(.*?)<!-- /runs -->", PAGE, re.DOTALL)[1]
    assert table.splitlines() == lines


def test_the_config_is_the_digits_in_larger_batches():
    config = load(str(EXPERIMENTS / "rates-on-digits.yaml"))
    assert config.batch_size == 128
    assert config.model == load("digits").model
