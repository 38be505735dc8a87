"""How often an answer is wrong, over simulated comparisons whose truth is known.

`benchmarks/simulated_comparisons.py` simulates more of them, and for more settings. The real
verdicts on some comparisons are shown to be those of the simulation.
"""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from compare.synthetic import summary
from halfstep.compare.cells.results import from_summary
from halfstep.compare.rows.rows import rows_by_arm
from halfstep.compare.rows.verdict import NO_WORSE, NOT_SETTLED, WORSE, verdicts

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "simulated_comparisons.py"
COMPARISONS = 2000


@pytest.fixture(scope="module")
def simulated():
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("simulated_comparisons", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPT.parent))


def test_at_most_five_percent_of_the_answers_are_wrong(simulated):
    chance = np.random.default_rng(0)
    most = stats.binom.isf(1e-5, COMPARISONS, 0.05) / COMPARISONS
    shares = []
    for setting in simulated.settings():
        share = simulated.wrong(setting, COMPARISONS, chance)
        assert share <= most, setting
        shares.append(share)
    assert np.mean(shares) <= 0.025


def test_stopping_at_the_first_good_moment_would_be_wrong_more_often(simulated):
    # What the planned looks are for: one interval of 95 % after each seed.
    setting = simulated.Setting(((12,),), 10_000, 0.004, 0.0, (1.0, 1.0), 0.01 + 1e-9)
    given = simulated.differences(setting, COMPARISONS, np.random.default_rng(0))
    found = [
        simulated.answers(replace(setting, attempts=((seeds,),)), given)[0]
        for seeds in range(2, 13)
    ]
    assert np.any(found, 0).mean() > 0.08
    looks = replace(setting, attempts=(tuple(range(2, 13)),))
    assert simulated.answers(looks, given)[0].mean() < 0.05


@pytest.mark.parametrize("looks", [(3,), (2, 4, 6)])
def test_the_real_answers_are_those_of_the_simulation(simulated, make_grid, looks):
    images = 400
    for number, loss in enumerate((0.0, 0.01, 0.02, 0.04)):
        setting = simulated.Setting((looks,), images, 0.004, 0.0, (1.0, 1.0), loss)
        given = simulated.differences(setting, 1, np.random.default_rng(number))
        no_worse, worse = simulated.answers(setting, given)
        expected = NO_WORSE if no_worse[0] else WORSE if worse[0] else NOT_SETTLED
        for look in looks:
            grid = replace(make_grid(("fp32", "fp16"), range(look)), looks=looks)
            results = [
                from_summary(
                    cell,
                    summary(
                        best_accuracy=0.9 + given[0, cell.seed] * (cell.recipe == "fp16"),
                        val_images=images,
                    ),
                )
                for cell in grid.cells
            ]
            (verdict,) = verdicts(grid, rows_by_arm(grid, results))
            if verdict.answer != NOT_SETTLED:
                break
        assert verdict.answer == expected


def test_the_committed_simulation_has_at_most_five_percent_of_wrong_answers():
    result = json.loads((SCRIPT.parent / "results" / "simulated_comparisons.json").read_text())
    assert max(row["wrong"] for row in result["wrong"]) <= 0.05
    assert {tuple(row["noisy"]) for row in result["wrong"]} >= {(1, 1), (3, 1), (1, 5)}
