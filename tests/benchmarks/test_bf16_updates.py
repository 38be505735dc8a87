"""The campaign behind the claim about bf16 updates, and what its committed result says."""

import importlib.util
import json
import math
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bf16_updates.py"


def load():
    spec = importlib.util.spec_from_file_location("bench_bf16_updates", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def within_seed_noise(result: dict, recipe: str) -> bool:
    """Whether two means differ by less than Welch's test at 1 % would notice with 5 seeds each."""
    ours, reference = (result["final_accuracy"][name] for name in (recipe, "fp32"))
    error = math.sqrt((ours["sd"] ** 2 + reference["sd"] ** 2) / ours["seeds"])
    one_image = 1 / 450
    return abs(ours["mean"] - reference["mean"]) <= max(3.36 * error, one_image)


@pytest.mark.parametrize("recipe", ["bf16-sr", "bf16-kahan"])
def test_the_committed_result_bears_the_claim_out(recipe):
    result = json.loads((load().RESULTS / "bf16_updates.json").read_text())
    assert result["final_accuracy"][recipe]["seeds"] == 5
    assert within_seed_noise(result, recipe)


@pytest.mark.slow
def test_the_campaign_bears_the_claim_out(tmp_path):
    result = load().measure(tmp_path / "comparison")
    assert result["final_accuracy"]["fp32"]["mean"] > 0.97
    assert all(within_seed_noise(result, recipe) for recipe in ("bf16-sr", "bf16-kahan"))
