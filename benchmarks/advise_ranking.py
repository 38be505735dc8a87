"""Does advise rank recipes as training does? Small tasks, each trained under ten recipes.

Every task is trained in fp32 and under each recipe from four seeds, with the exceptions and the
loss scale that advise gives it where it is called safe, as it is where it is rejected. The gap of a
recipe is how far the loss over all training samples, after the last step, is from that of fp32 from
the same weights in the same order of batches. Predicted damage is what advise has found from eight
steps of one seed; it is infinite where advise rejects a recipe without a step to rehearse, as for
an eps that is zero. Four more seeds of fp32 alone tell how far seeds differ.

Two recipes of a task have an order where seeds tell their gaps apart: where the 95 % interval of
the difference of their gaps, paired by seed, has not zero in it, or one of them breaks. Kendall's
tau counts these pairs, those that are predicted alike as neither right nor wrong. The tau of all
pairs, which trainings of the same recipes from other seeds would not agree on, is given besides.

Regret is how much higher the final loss of the recipe with the least predicted damage is than the
lowest one of fp32 and all recipes, in standard deviations of fp32's seeds; the mean over seeds of
each. Where no recipe is called safe, fp32 is recommended. This counts against the advice what
rounding wins by chance: a recipe whose updates differ from those of fp32 by orders may end lower in
a short training. Advice is asked which recipe trains as fp32 does, so the regret among recipes that
do is given besides: the lowest loss is then that of fp32 and of the recipes whose mean loss is at
most two standard deviations from that of fp32, above or below, as a recipe that is called safe and
ends more than two above is unsafe. Whether advice calls a recipe safe does not matter for either.
Both are pessimistic: the lowest of up to eleven means is low by chance.

52 tasks were in view while the measure of damage was chosen: the 20 of `ranking/tasks.py`, and the
12 of `ranking/further.py` and the 20 of `ranking/held_out.py`, each held out for an earlier measure
before. The 20 of `ranking/unseen.py` are by another author, who wrote them while the measure was
frozen, and were run once. The 20 of `ranking/third.py` are by a third author, who knew neither the
measure nor what came of the others; they have a file of results of their own. Losses that a result
has of the very same training (fp32 gives its first loss to the bit, and the recipe has the same
exceptions and loss scale) are not computed again; tasks that were run before have four to eight
seeds of fp32.

    python benchmarks/advise_ranking.py --tasks 0:52
    python benchmarks/advise_ranking.py --tasks 52:72
    python benchmarks/advise_ranking.py --tasks 72:92 --results .../advise_ranking_third.json
    python benchmarks/advise_ranking.py --tasks 0:0        # sums up what is there
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
from halfstep.advise.choose.record import record
from halfstep.advise.choose.rehearse import is_doubtful, over_two_steps, rehearse
from halfstep.advise.choose.survive import survive
from halfstep.recipe import recipe as find_recipe
from halfstep.techniques import LossScaleCollapse

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
    """Train, and return the loss over all samples in fp32; infinite where training breaks."""
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model)
    try:
        with Engine(model, optimizer, recipe=recipe, seed=seed) as engine:
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
    """Advise on a task, and train it under every recipe.

    Args:
        task: The task.
        before: Its row in the result that there is, or nothing.
    """
    exact = before.get("fp32", [])
    known = exact[:1] == [final_loss(task, "fp32", 0)]
    if not known:
        exact = [final_loss(task, "fp32", seed) for seed in range(SEEDS_OF_FP32)]
    subject = task.subject(seed=0)
    recorded = record(subject)
    found: dict[str, Any] = {"task": task.name, "fp32": exact, "recipes": {}}
    for name in RECIPES:
        trial = survive(subject, recorded, name)
        base = find_recipe(name)
        rehearsed = trial.rehearsal
        if trial.rejected and rehearsed is not None:  # it is trained without exceptions
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
"""Stands for an infinite gap or damage: recipes that break are alike."""


def gaps(losses: list[float], exact: list[float]) -> list[float]:
    """Return how far a recipe's final losses are from those of fp32, by seed."""
    pairs = zip(losses, exact[: len(losses)], strict=True)
    return [min(abs(mine - right), BROKEN) for mine, right in pairs]


def order(first: list[float], second: list[float]) -> int:
    """Return 1 where the first gap is the larger, -1 the smaller, and 0 where seeds do not tell."""
    apart = np.subtract(first, second)
    sign = int(np.sign(apart.mean()))
    if BROKEN in (*first, *second):
        return sign
    error = apart.std(ddof=1) / math.sqrt(len(apart))
    return sign if abs(apart.mean()) > stats.t.ppf((1 + LEVEL) / 2, len(apart) - 1) * error else 0


def agreement(damages: list[float], by_seed: list[list[float]]) -> dict[str, int]:
    """Count the pairs with an order that damage has right, wrong, and as alike."""
    found = {"right": 0, "wrong": 0, "alike": 0}
    for one, other in itertools.combinations(range(len(damages)), 2):
        if truth := order(by_seed[one], by_seed[other]):
            said = int(np.sign(damages[one] - damages[other]))
            found["alike" if said == 0 else "right" if said == truth else "wrong"] += 1
    return found


def tau(pairs: dict[str, int]) -> float:
    """Return Kendall's tau of counted pairs; 1 of none."""
    ordered = sum(pairs.values())
    return (pairs["right"] - pairs["wrong"]) / ordered if ordered else 1.0


def tau_of_all(damages: list[float], gaps: list[float]) -> float:
    """Return Kendall's tau-b of all pairs, 0 where it is none."""
    found = float(stats.kendalltau(damages, gaps).statistic)
    return found if math.isfinite(found) else 0.0


def judge(each: dict[str, Any]) -> None:
    """Add to a task's row what its figures come to."""
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
    """Return how well damage ranks gaps, and what came of the advice."""
    pairs = {key: sum(each["pairs"][key] for each in rows) for key in ("right", "wrong", "alike")}
    return {
        "tasks": len(rows),
        "recipes": len(RECIPES),
        "seeds": SEEDS,
        "seeds_of_fp32": SEEDS_OF_FP32,
        "pairs": pairs,
        "tau": tau(pairs),
        "tau_mean": float(np.mean([each["tau"] for each in rows])),
        "tau_lowest": min(each["tau"] for each in rows),
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
    """Run tasks, and write what came of them beside those that were run before."""
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
    """Write the rows there are, and what they come to."""
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
