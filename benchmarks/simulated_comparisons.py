"""Simulates how often `halfstep compare` advises a recipe for its speed.

    python benchmarks/simulated_comparisons.py

The share of comparisons is computed for some true speeds and numbers of seeds. The time of each run
is random: log-normal, with 10 % of noise around its true value. Each comparison pairs the recipe
with the reference by seed. It advises the recipe by the rule of `compare/rows/verdict.py`: if the
whole interval of the speed ratio is above `GAIN`. Writes `results/simulated_comparisons.json` and
the table of docs/compare.md. Takes some seconds; no time is measured, so the load of the machine
does not matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import docs_table
import numpy as np

from halfstep.compare.rows.statistics import estimate_ratio
from halfstep.compare.rows.verdict import GAIN

RESULTS = Path(__file__).parent / "results" / "simulated_comparisons.json"
PAGE = "compare.md"
SPEEDS = 1.0, 1.5, 2.0
SEEDS = 3, 5
COMPARISONS = 2000
NOISE = 0.1


def advised(speed: float, seeds: int, comparisons: int = COMPARISONS) -> float:
    """Return the share of comparisons that advise a recipe of this true speed, 0 to 1."""
    chance = np.random.default_rng(0)
    reference = chance.lognormal(0.0, NOISE, (comparisons, seeds))
    recipe = chance.lognormal(0.0, NOISE, (comparisons, seeds)) / speed
    found = [estimate_ratio(ratios) for ratios in (reference / recipe).tolist()]
    return sum(each is not None and each.is_above(GAIN) for each in found) / comparisons


def measure() -> dict[str, Any]:
    """Return the shares, with the assumptions of the simulation."""
    rows = [
        {"speed": speed, "advised": {str(seeds): advised(speed, seeds) for seeds in SEEDS}}
        for speed in SPEEDS
    ]
    return {"comparisons": COMPARISONS, "noise": NOISE, "threshold": GAIN, "rows": rows}


def table(result: dict[str, Any]) -> list[str]:
    """Return the table of docs/compare.md."""
    heads = " | ".join(f"advised, {seeds} seeds" for seeds in SEEDS)
    lines = [f"| true speed | {heads} |", "| --: |" + " --: |" * len(SEEDS)]
    for row in result["rows"]:
        shares = " | ".join(f"{100 * row['advised'][str(seeds)]:.1f} %" for seeds in SEEDS)
        lines.append(f"| {row['speed']:.1f}x | {shares} |")
    return lines


def main() -> None:
    """Simulate, and write the results and the table."""
    result = measure()
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    docs_table.put(PAGE, "simulated", table(result))
    print("\n".join(table(result)))


if __name__ == "__main__":
    main()
