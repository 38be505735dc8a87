"""Compares the order in which advise ranks recipes with real training: small tasks, ten recipes.

Each task is trained in fp32 and under each recipe, from four seeds. A recipe that advise calls safe
is trained with the exceptions and the loss scale of the advice, and a rejected recipe without
exceptions. The gap of a recipe is the absolute difference between its final loss and that of fp32
with the same initial weights and the same order of batches. The final loss is the loss over all
training samples after the last step. The predicted damage is the result of advise from eight steps
of one seed. It is infinite if advise rejects a recipe without a rehearsal, for example because an
eps is rounded to zero. fp32 has four more seeds, which show how much the seeds differ.

Two recipes of a task have an order if the seeds distinguish their gaps: if the 95 % interval of the
difference of their gaps, paired by seed, excludes zero, or if one of them breaks. Kendall's tau is
computed over these pairs. A pair with equal predicted damage counts as neither right nor wrong. The
tau over all pairs is also given; it contains pairs whose order would change with other seeds.

The recommended recipe is the safe recipe with the least predicted damage, or fp32 if no recipe is
safe. The regret is the difference between its final loss and the lowest final loss of fp32 and all
recipes, safe or not. Losses are means over seeds, and the unit is the standard deviation over the
seeds of fp32. This regret also counts gains that rounding makes by chance: in a short training, a
recipe whose updates differ from those of fp32 by orders of magnitude may end with a lower loss.
advise is meant to find recipes that train like fp32. So a second regret only considers fp32 and the
recipes, safe or not, whose mean loss is at most two standard deviations above or below that of
fp32. (A recipe that is called safe, but ends more than two standard deviations above fp32, counts
as unsafe.) Both regrets are pessimistic, because the lowest of up to eleven means is low by chance.

52 tasks were known while the measure of damage was chosen: the 20 of `ranking/tasks.py`, the 12 of
`ranking/further.py` and the 20 of `ranking/held_out.py`. The last two sets had been held out for
earlier measures. The 20 tasks of `ranking/unseen.py` are by another author, who wrote them while
the measure was frozen; they were run once. The 20 tasks of `ranking/third.py` are by a third
author, who knew neither the measure nor the results of the other tasks; they have a separate file
of results. The losses in an existing result are reused if the training is exactly the same: if fp32
gives the same first loss to the bit, and the recipe has the same exceptions and loss scale. So
tasks that were run earlier have four to eight seeds of fp32.

    python benchmarks/advise_ranking.py --tasks 0:52
    python benchmarks/advise_ranking.py --tasks 52:72
    python benchmarks/advise_ranking.py --tasks 72:92 --results .../advise_ranking_third.json
    python benchmarks/advise_ranking.py --tasks 0:0        # only computes the summary
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ranking.further import further
from ranking.held_out import held_out
from ranking.tasks import tasks
from ranking.third import third
from ranking.unseen import unseen
from rich.console import Console
from rich.progress import track
from scipy import stats

from halfstep import Engine
from halfstep.advise.choose.drift import followed
from halfstep.advise.choose.exceptions import find_exceptions
from halfstep.advise.choose.record import record
from halfstep.advise.choose.rehearse import is_doubtful, over_two_steps, rehearse
from halfstep.mechanisms.loss_scale.scaler import LossScaleCollapse
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from ranking.tasks import Task

    from halfstep.recipe import Recipe

RESULTS = Path(__file__).parent / "results" / "advise_ranking.json"
RECIPES = (
    *("fp16", "bf16", "o2", "half", "half-bn32"),
    *("bf16-true", "bf16-sr", "bf16-kahan", "fp8", "fp16+act2"),
)
STEPS, SEEDS, LEVEL = 150, 4, 0.95
SEEDS_OF_FP32 = 8


def final_loss(task: Task, recipe: str | Recipe, seed: int) -> float:
    """Train, and return the loss over all samples in fp32; infinite if the training breaks."""
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model)
    try:
        with Engine(model, optimizer, recipe=recipe, seed=seed, nonfinite="apply") as engine:
            for batch in task.batches(seed + 100, STEPS):
                with engine.autocast():
                    loss = task.loss(engine.model, batch)
                engine.backward(loss)
                engine.step()
            weights = engine.bare_model.state_dict()
    except (RuntimeError, TypeError, ValueError, LossScaleCollapse):
        return math.inf
    exact = task.model()
    exact.load_state_dict(weights)
    with torch.no_grad():
        found = float(task.loss(exact.train(), (task.inputs, task.targets)))
    return found if math.isfinite(found) else math.inf


def row(task: Task, before: dict[str, Any]) -> dict[str, Any]:
    """Advise on a task, and train it under each recipe.

    Args:
        task: The task.
        before: The task's row in the existing result; {} if there is none.
    """
    exact = before.get("fp32", [])
    known = exact[:1] == [final_loss(task, "fp32", 0)]
    if not known:
        exact = [final_loss(task, "fp32", seed) for seed in range(SEEDS_OF_FP32)]
    subject = task.subject(seed=0)
    recorded = record(subject)
    found: dict[str, Any] = {"task": task.name, "fp32": exact, "recipes": {}}
    for name in RECIPES:
        trial = find_exceptions(subject, recorded, name)
        base = find_recipe(name)
        rehearsed = trial.rehearsal
        if trial.rejected and rehearsed is not None:  # rejected recipes train without exceptions
            rehearsed = rehearse(subject, recorded, base)
            if not rehearsed.breaks and is_doubtful(rehearsed, recorded):
                rehearsed = over_two_steps(rehearsed, subject, recorded, base)
            rehearsed = followed(rehearsed, subject, recorded, base)
        trained = {
            "safe": not trial.rejected,
            "exceptions": sorted(trial.exceptions),
            "first_scale": None if trial.recipe.scaling is None else trial.recipe.scaling.init,
        }
        its_before = before["recipes"][name] if known else {}
        if "exceptions" in its_before:
            its_before["exceptions"].sort()
        if all(its_before.get(key) == value for key, value in trained.items()):
            losses = its_before["losses"]
        else:
            used = base if trial.rejected else trial.recipe
            losses = [final_loss(task, used, seed) for seed in range(SEEDS)]
        found["recipes"][name] = {
            **trained,
            "rejected": trial.rejected,
            "damage": math.inf if rehearsed is None else rehearsed.damage,
            "gradient_damage": math.inf if rehearsed is None else rehearsed.gradient_damage,
            "update_noise": math.inf if rehearsed is None else rehearsed.update_noise,
            "drift": math.inf if rehearsed is None else rehearsed.drift,
            "losses": losses,
        }
    return found


BROKEN = 1e9
"""The gap or damage of a recipe that breaks; not infinity, because differences must be finite."""


def gaps(losses: list[float], exact: list[float]) -> list[float]:
    """Return the absolute difference between a recipe's final loss and that of fp32, by seed."""
    pairs = zip(losses, exact[: len(losses)], strict=True)
    return [min(abs(mine - right), BROKEN) for mine, right in pairs]


def order(first: list[float], second: list[float]) -> int:
    """Return 1 if the first gap is larger, -1 if it is smaller, 0 if the seeds do not decide."""
    apart = np.subtract(first, second)
    sign = int(np.sign(apart.mean()))
    if BROKEN in (*first, *second):
        return sign
    error = apart.std(ddof=1) / math.sqrt(len(apart))
    return sign if abs(apart.mean()) > stats.t.ppf((1 + LEVEL) / 2, len(apart) - 1) * error else 0


def agreement(damages: list[float], by_seed: list[list[float]]) -> dict[str, int]:
    """Count the pairs with an order whose damages have the right order, the wrong one, or none."""
    found = {"right": 0, "wrong": 0, "alike": 0}
    for one, other in itertools.combinations(range(len(damages)), 2):
        if truth := order(by_seed[one], by_seed[other]):
            said = int(np.sign(damages[one] - damages[other]))
            found["alike" if said == 0 else "right" if said == truth else "wrong"] += 1
    return found


def tau(pairs: dict[str, int]) -> float | None:
    """Return Kendall's tau of counted pairs; None if there are none."""
    ordered = sum(pairs.values())
    return (pairs["right"] - pairs["wrong"]) / ordered if ordered else None


def tau_of_all(damages: list[float], gaps: list[float]) -> float:
    """Return Kendall's tau-b of all pairs; 0 if it is not defined."""
    found = float(stats.kendalltau(damages, gaps).statistic)
    return found if math.isfinite(found) else 0.0


def judge(each: dict[str, Any]) -> None:
    """Add gaps, tau, unsafe recipes, the recommendation and the regrets to a task's row."""
    recipes, exact = each["recipes"], each["fp32"]
    noise = each["noise"] = float(np.std(exact, ddof=1))
    damages = [min(found["damage"], BROKEN) for found in recipes.values()]
    by_seed = [gaps(found["losses"], exact) for found in recipes.values()]
    means = [float(np.mean(each)) for each in by_seed]
    each["gaps"] = dict(zip(recipes, means, strict=True))
    each["pairs"] = agreement(damages, by_seed)
    each["tau"], each["tau_of_all"] = tau(each["pairs"]), tau_of_all(damages, means)
    ended = {name: float(np.mean(found["losses"])) for name, found in recipes.items()}
    safe = [name for name, found in recipes.items() if found["safe"]]
    right = float(np.mean(exact[:SEEDS]))
    each["unsafe"] = [name for name in safe if not ended[name] - right <= 2 * noise]
    each["recommended"] = min(safe, key=lambda name: recipes[name]["damage"], default="fp32")
    mine = ended.get(each["recommended"], right)
    as_fp32 = [loss for loss in ended.values() if abs(loss - right) <= 2 * noise]
    each["regret"] = (mine - min(*ended.values(), right)) / noise
    each["regret_as_fp32"] = (mine - min([*as_fp32, right])) / noise


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return figures over all tasks: tau, the recipes that are unsafe, and the regrets.

    A task without a pair whose order is certain has no tau, so means and minima leave it out.
    """
    taus = [each["tau"] for each in rows if each["tau"] is not None]
    pairs = {key: sum(each["pairs"][key] for each in rows) for key in ("right", "wrong", "alike")}
    return {
        "tasks": len(rows),
        "recipes": len(RECIPES),
        "seeds": SEEDS,
        "seeds_of_fp32": SEEDS_OF_FP32,
        "pairs": pairs,
        "tau": tau(pairs),
        "tau_mean": float(np.mean(taus)),
        "tau_lowest": min(taus),
        "tau_of_all_mean": float(np.mean([each["tau_of_all"] for each in rows])),
        "tau_of_all_median": float(np.median([each["tau_of_all"] for each in rows])),
        "called_safe": sum(found["safe"] for each in rows for found in each["recipes"].values()),
        "unsafe": [f"{each['task']}: {name}" for each in rows for name in each["unsafe"]],
        "regret_within_noise": float(np.mean([each["regret"] <= 1 for each in rows])),
        "regret_as_fp32_within_noise": float(
            np.mean([each["regret_as_fp32"] <= 1 for each in rows])
        ),
        "largest_regret": max(each["regret"] for each in rows),
    }


def main() -> None:
    """Run the selected tasks, and write their rows together with the existing rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default="0:72", help="which, as first:last")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where rows are and go")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="files of further rows")
    given = parser.parse_args()
    torch.set_num_threads(1)
    first, last = map(int, given.tasks.split(":"))
    seen, others = [*tasks(), *further(), *held_out()], [*unseen(), *third()]
    files = [file for file in (given.results, *given.also) if file.exists()]
    rows = {each["task"]: each for file in files for each in json.loads(file.read_text())["tasks"]}
    names = {each.name for each in others}
    for task in track([*seen, *others][first:last], "tasks"):
        rows[task.name] = row(task, rows.get(task.name, {}))
        write(given.results, [*seen, *others], rows, names)
    write(given.results, [*seen, *others], rows, names)


def write(results: Path, all_tasks: list[Task], rows: dict[str, Any], others: set[str]) -> None:
    """Write all rows and their summary."""
    ordered = [rows[task.name] for task in all_tasks if task.name in rows]
    for each in ordered:
        each["unseen"] = each["task"] in others
        judge(each)
    sums = {
        name: summary(some)
        for name, is_unseen in (("in view", False), ("unseen", True))
        if (some := [each for each in ordered if each["unseen"] == is_unseen])
    }
    document = {
        "environment": {"torch": torch.__version__, "python": platform.python_version()},
        "summary": sums,
        "tasks": ordered,
    }
    results.write_text(json.dumps(document, indent=1) + "\n")
    Console().print(sums)


if __name__ == "__main__":
    main()
