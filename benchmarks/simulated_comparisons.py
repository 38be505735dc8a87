"""Simulates how often `halfstep compare` advises a recipe for its speed, and accepts its accuracy.

    python benchmarks/simulated_comparisons.py

Speed: the share of comparisons is computed for some true speeds and numbers of seeds. The time of
each run is random: log-normal, with 10 % of noise around its true value. Each comparison pairs the
recipe with the reference by seed. It advises the recipe by the rule of `compare/rows/verdict.py`:
if the whole interval of the speed ratio is above `GAIN`.

Accuracy: the share of comparisons that exclude a loss of more than `TOLERABLE` for a recipe that
loses nothing. Three recipes have the same noise, and 10,000 validation images.

Writes `results/simulated_comparisons.json` and the tables of docs/compare.md. Takes some seconds;
no time is measured, so the load of the machine does not matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import docs_table
import numpy as np

from halfstep.compare.rows.gains import GAIN
from halfstep.compare.rows.noise import noise
from halfstep.compare.rows.verdict import TOLERABLE
from halfstep.statistics import estimate, estimate_ratio

RESULTS = Path(__file__).parent / "results" / "simulated_comparisons.json"
PAGE = "compare.md"
SPEEDS = 1.0, 1.5, 2.0
SEEDS = 3, 5
COMPARISONS = 2000
NOISE = 0.1
SPREADS = 0.001, 0.002, 0.004
"""Standard deviations of a recipe's accuracy over seeds, 0 to 1."""
FEW_SEEDS = 2, 3, 5
RECIPES, IMAGES = 3, 10_000


def advised(speed: float, seeds: int, comparisons: int = COMPARISONS) -> float:
    """Return the share of comparisons that advise a recipe of this true speed, 0 to 1."""
    chance = np.random.default_rng(0)
    reference = chance.lognormal(0.0, NOISE, (comparisons, seeds))
    recipe = chance.lognormal(0.0, NOISE, (comparisons, seeds)) / speed
    found = [estimate_ratio(ratios) for ratios in (reference / recipe).tolist()]
    return sum(each is not None and each.is_above(GAIN) for each in found) / comparisons


def accepted(spread: float, seeds: int, comparisons: int = COMPARISONS) -> float:
    """Return the share of comparisons that exclude a loss for a recipe without one, 0 to 1."""
    chance = np.random.default_rng(0)
    true = 0.93 + spread * chance.normal(size=(comparisons, RECIPES, seeds))
    accuracies = np.round(true * IMAGES) / IMAGES
    variances, freedom = noise(accuracies, 1 / IMAGES)
    found = [
        estimate(differences, (variance, added))
        for differences, variance, added in zip(
            (accuracies[:, 1] - accuracies[:, 0]).tolist(),
            variances[:, 0].tolist(),
            freedom[:, 0].tolist(),
            strict=True,
        )
    ]
    lows = [each.low for each in found if each is not None and each.low is not None]
    return sum(low >= -TOLERABLE for low in lows) / comparisons


def measure() -> dict[str, Any]:
    """Return the shares, with the assumptions of the simulation."""
    rows = [
        {"speed": speed, "advised": {str(seeds): advised(speed, seeds) for seeds in SEEDS}}
        for speed in SPEEDS
    ]
    accuracy = [
        {"spread": spread, "accepted": {str(seeds): accepted(spread, seeds) for seeds in FEW_SEEDS}}
        for spread in SPREADS
    ]
    return {
        "comparisons": COMPARISONS,
        "noise": NOISE,
        "threshold": GAIN,
        "rows": rows,
        "accuracy": accuracy,
    }


def table(result: dict[str, Any]) -> list[str]:
    """Return the table of speeds of docs/compare.md."""
    heads = " | ".join(f"advised, {seeds} seeds" for seeds in SEEDS)
    lines = [f"| true speed | {heads} |", "| --: |" + " --: |" * len(SEEDS)]
    for row in result["rows"]:
        shares = " | ".join(f"{100 * row['advised'][str(seeds)]:.1f} %" for seeds in SEEDS)
        lines.append(f"| {row['speed']:.1f}x | {shares} |")
    return lines


def accuracy_table(result: dict[str, Any]) -> list[str]:
    """Return the table of accuracies of docs/compare.md."""
    heads = " | ".join(f"accepted, {seeds} seeds" for seeds in FEW_SEEDS)
    lines = [f"| spread over seeds, points | {heads} |", "| --: |" + " --: |" * len(FEW_SEEDS)]
    for row in result["accuracy"]:
        shares = " | ".join(f"{100 * row['accepted'][str(seeds)]:.0f} %" for seeds in FEW_SEEDS)
        lines.append(f"| {100 * row['spread']:.1f} | {shares} |")
    return lines


def main() -> None:
    """Simulate, and write the results and the table."""
    result = measure()
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    docs_table.put(PAGE, "simulated", table(result))
    docs_table.put(PAGE, "simulated-accuracy", accuracy_table(result))
    print("\n".join([*table(result), *accuracy_table(result)]))


if __name__ == "__main__":
    main()
