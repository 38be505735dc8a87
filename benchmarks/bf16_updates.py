"""Claim: bf16 parameters with stochastic or Kahan rounding learn the digits as well as fp32.

Trains the `digits` config under fp32, bf16-true, bf16-sr and bf16-kahan with five seeds each, and
writes accuracies and their spread to results/bf16_updates.json. Takes about five minutes on two
cores; after an interruption, the same command continues.

    python benchmarks/bf16_updates.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RECIPES = ("fp32", "bf16-true", "bf16-sr", "bf16-kahan")
SEEDS = 5
RESULTS = Path(__file__).parent / "results"


def measure(directory: Path, *, seeds: int = SEEDS) -> dict[str, Any]:
    """Run the comparison in `directory`, and return its accuracies with the environment."""
    comparison = ["compare", "digits", "--recipes", ",".join(RECIPES), "--seeds", str(seeds)]
    subprocess.run(
        [sys.executable, "-m", "halfstep", *comparison, "--out", str(directory)], check=True
    )
    found = json.loads((directory / "comparison.json").read_text())
    first = directory / found["cells"][0]["directory"] / "run" / "environment.json"
    return {
        "claim": "final accuracy of bf16-sr and bf16-kahan is within seed noise of fp32's",
        "config": found["config"],
        "seeds": found["seeds"],
        "environment": json.loads(first.read_text()),
        "final_accuracy": {
            row["recipe"]: row["measures"]["final_accuracy"] for row in found["rows"]
        },
        "difference_to_fp32": {row["recipe"]: row["difference"] for row in found["rows"]},
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/bench/bf16_updates"))
    parser.add_argument("--out", type=Path, default=RESULTS / "bf16_updates.json")
    given = parser.parse_args()
    result = measure(given.work)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    for recipe, accuracy in result["final_accuracy"].items():
        print(f"{recipe:<12} {accuracy['mean']:.2%} (sd {accuracy['sd']:.2%})")


if __name__ == "__main__":
    main()
