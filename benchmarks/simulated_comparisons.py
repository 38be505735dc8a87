"""Simulates how often `halfstep compare` answers wrongly, and how often it settles a question.

    python benchmarks/simulated_comparisons.py

Accuracy: every run of a simulated comparison has a random accuracy, counted in validation images.
The recipe is held against its baseline as `compare/rows/verdict.py` does it, at one look or at
several planned ones, and each attempt at the same question may be followed by another one with more
seeds. The truth is known: the recipe loses nothing, or it loses the margin and a little more. An
answer is wrong if it says "worse" of the first or "no worse by more than the margin" of the second.
Either row may be three or five times as noisy as the other.

Speed: the share of comparisons is computed for some true speeds and numbers of seeds. The time of
each run is random: log-normal, with 10 % of noise around its true value. Each comparison pairs the
recipe with the reference by seed. It advises the recipe by the rule of `compare/rows/verdict.py`:
if the whole interval of the speed ratio is above `GAIN`.

Writes `results/simulated_comparisons.json` and the tables of docs/compare.md. Takes a minute; no
time is measured, so the load of the machine does not matter.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
import numpy as np

from halfstep.compare.plan.grid import MARGIN
from halfstep.compare.rows.gains import GAIN
from halfstep.looks import levels
from halfstep.statistics import CONFIDENCE, estimate_ratio, half_width

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Values = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results" / "simulated_comparisons.json"
PAGE = "compare.md"
SPEEDS = 1.0, 1.5, 2.0
SEEDS = 3, 5
COMPARISONS = 2000
NOISE = 0.1
ANSWERS = 40_000
"""Simulated comparisons of each setting for the share of wrong answers."""
SPREADS = 0.001, 0.002, 0.004
"""Standard deviations of a recipe's accuracy over seeds, 0 to 1."""
SETTLED_BY = 3, 5, 8
PLANS: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((2,),),
    ((3,),),
    ((5,),),
    ((8,),),
    ((4, 8, 16),),
    ((2, 4, 6, 8),),
    ((3,), (5,), (8,), (12,)),
)
"""Attempts at a question, each with its planned looks; the last line comes back with more seeds."""
NOISY = (1.0, 1.0), (3.0, 1.0), (1.0, 3.0), (5.0, 1.0), (1.0, 5.0)
"""Factors on the standard deviation of the baseline, and on that of the recipe."""


@dataclass(frozen=True)
class Setting:
    """What is true of simulated comparisons.

    Attributes:
        attempts: The looks of each attempt.
        images: The number of validation images.
        sd: The standard deviation of an accuracy over seeds, 0 to 1.
        shared: The share of that variance that both runs of a pair have in common.
        noisy: Factors on the standard deviation of the baseline and of the recipe.
        loss: The true loss of the recipe, 0 to 1.
    """

    attempts: tuple[tuple[int, ...], ...]
    images: int
    sd: float
    shared: float
    noisy: tuple[float, float]
    loss: float


def settings(plans: Sequence[tuple[tuple[int, ...], ...]] = PLANS) -> Iterator[Setting]:
    """Yield every setting: losses of nothing, and of just more than the margin."""
    for plan, images, sd, shared, noisy, loss in product(
        plans, (400, 10_000), (0.001, 0.004, 0.01), (0.0, 0.9), NOISY, (0.0, MARGIN + 1e-9)
    ):
        yield Setting(plan, images, sd, shared, noisy, loss)


def differences(setting: Setting, comparisons: int, chance: np.random.Generator) -> Values:
    """Return the differences in accuracy by seed, of the shape (comparisons, seeds)."""
    seeds = max(map(max, setting.attempts))
    both = setting.sd * setting.shared**0.5 * chance.normal(size=(comparisons, seeds))
    level = 0.9 + chance.uniform(size=(comparisons, 1)) / setting.images
    own = [
        setting.sd * (1 - setting.shared) ** 0.5 * factor * chance.normal(size=both.shape)
        for factor in setting.noisy
    ]
    base, recipe = (
        np.round((level + both + each - loss) * setting.images) / setting.images
        for each, loss in zip(own, (0.0, setting.loss), strict=True)
    )
    return recipe - base


def answers(setting: Setting, given: Values) -> tuple[Values, Values]:
    """Return which comparisons say "no worse" and which say "worse" at any look of any attempt."""
    no_worse, worse = np.zeros((2, len(given)), dtype=bool)
    for number, looks in enumerate(setting.attempts):
        for seeds, level in zip(looks, levels(looks, (1 - CONFIDENCE) / 2**number), strict=True):
            seen = given[:, :seeds]
            half, _ = half_width(seen, 1 - level, 1 / setting.images)
            mean, is_open = seen.mean(1), ~(no_worse | worse)
            no_worse |= is_open & (mean - half > -MARGIN)
            worse |= is_open & (mean + half < -MARGIN)
    return no_worse, worse


def wrong(setting: Setting, comparisons: int, chance: np.random.Generator) -> float:
    """Return the share of comparisons with a wrong answer, 0 to 1."""
    no_worse, worse = answers(setting, differences(setting, comparisons, chance))
    return float((no_worse if setting.loss > MARGIN else worse).mean())


def worst(comparisons: int = ANSWERS) -> list[dict[str, Any]]:
    """Return, for each plan and each pair of noises, the setting with the most wrong answers."""
    chance = np.random.default_rng(0)
    found: dict[Any, dict[str, Any]] = {}
    for setting in settings():
        share = wrong(setting, comparisons, chance)
        key = setting.attempts, setting.noisy
        if key not in found or share > found[key]["wrong"]:
            found[key] = {**asdict(setting), "wrong": share}
    return list(found.values())


def advised(speed: float, seeds: int, comparisons: int = COMPARISONS) -> float:
    """Return the share of comparisons that advise a recipe of this true speed, 0 to 1."""
    chance = np.random.default_rng(0)
    reference = chance.lognormal(0.0, NOISE, (comparisons, seeds))
    recipe = chance.lognormal(0.0, NOISE, (comparisons, seeds)) / speed
    found = [estimate_ratio(ratios) for ratios in (reference / recipe).tolist()]
    return sum(each is not None and each.is_above(GAIN) for each in found) / comparisons


def settled(spread: float, seeds: int, comparisons: int = ANSWERS) -> float:
    """Return the share of comparisons that settle a recipe without a loss, 0 to 1."""
    chance = np.random.default_rng(0)
    setting = Setting(((seeds,),), 10_000, spread, 0.0, (1.0, 1.0), 0.0)
    no_worse, _ = answers(setting, differences(setting, comparisons, chance))
    return float(no_worse.mean())


def measure() -> dict[str, Any]:
    """Return the shares, with the assumptions of the simulation."""
    rows = [
        {"speed": speed, "advised": {str(seeds): advised(speed, seeds) for seeds in SEEDS}}
        for speed in SPEEDS
    ]
    accuracy = [
        {"spread": spread, "settled": {str(each): settled(spread, each) for each in SETTLED_BY}}
        for spread in SPREADS
    ]
    return {
        "comparisons": COMPARISONS,
        "noise": NOISE,
        "threshold": GAIN,
        "rows": rows,
        "margin": MARGIN,
        "answers": ANSWERS,
        "accuracy": accuracy,
        "wrong": worst(),
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
    """Return the table of settled comparisons of docs/compare.md."""
    heads = " | ".join(f"settled, {seeds} seeds" for seeds in SETTLED_BY)
    lines = [f"| spread over seeds, points | {heads} |", "| --: |" + " --: |" * len(SETTLED_BY)]
    for row in result["accuracy"]:
        shares = " | ".join(f"{100 * row['settled'][str(seeds)]:.0f} %" for seeds in SETTLED_BY)
        lines.append(f"| {100 * row['spread']:.1f} | {shares} |")
    return lines


def wrong_table(result: dict[str, Any]) -> list[str]:
    """Return the table of wrong answers of docs/compare.md: a row for each plan."""
    heads = " | ".join(
        "equal noise"
        if base == recipe
        else f"{'baseline' if base > recipe else 'recipe'} {max(base, recipe):.0f}x as noisy"
        for base, recipe in NOISY
    )
    lines = [f"| looks, seeds | {heads} |", "| --- |" + " --: |" * len(NOISY)]
    found = {json.dumps([row["attempts"], row["noisy"]]): row["wrong"] for row in result["wrong"]}
    for plan in PLANS:
        shares = " | ".join(f"{100 * found[json.dumps([plan, noisy])]:.1f} %" for noisy in NOISY)
        name = "; ".join(", ".join(map(str, looks)) for looks in plan)
        lines.append(f"| {name} | {shares} |")
    return lines


def main() -> None:
    """Simulate, and write the results and the tables."""
    result = measure()
    tables = {
        "simulated": table(result),
        "simulated-accuracy": accuracy_table(result),
        "simulated-wrong": wrong_table(result),
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    for name, lines in tables.items():
        docs_table.put(PAGE, name, lines)
        print("\n".join(lines))


if __name__ == "__main__":
    main()
