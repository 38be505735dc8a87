"""Checks whether the verification of advise notices unsafe recipes that advise calls safe.

Each recipe that advise calls safe for one of the 40 unseen tasks of `advise_ranking.py` is verified
as in `halfstep advise` without a budget: in pairs of trainings of 100 steps, one under the recipe
and one in fp32. The trainings of `advise_ranking.py`, with 150 steps from each of four seeds, show
which of these recipes are unsafe. If a recipe has other exceptions or another initial loss scale
since then, because a rule was changed, it is trained again.

    python benchmarks/advise_verified.py         # or a part: --tasks 0:5
"""

from __future__ import annotations

import argparse
import json
import platform
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import advise_ranking
import numpy as np
import torch
from ranking.third import third
from ranking.unseen import unseen
from rich.console import Console
from rich.progress import track

from halfstep.advise.choose.exceptions import find_exceptions
from halfstep.advise.choose.record import record
from halfstep.advise.choose.verify import STEPS, Verifier

if TYPE_CHECKING:
    from ranking.tasks import Task

    from halfstep.advise.choose.trial import Trial

RESULTS = Path(__file__).parent / "results" / "advise_verified.json"
TRAINED = tuple(
    advise_ranking.RESULTS.with_name(f"advise_ranking{which}.json") for which in ("", "_third")
)


def losses(task: Task, trial: Trial, trained: dict[str, Any]) -> list[float]:
    """Return the final loss under a recipe after 150 steps, for each seed."""
    scaling = trial.recipe.scaling
    before = trained["recipes"][trial.base]
    is_same = (
        before["safe"]
        and sorted(before["exceptions"]) == sorted(trial.exceptions)
        and before["first_scale"] == (scaling.init if scaling else None)
    )
    if is_same:
        return list(before["losses"])
    seeds = range(advise_ranking.SEEDS)
    return [advise_ranking.final_loss(task, trial.recipe, seed) for seed in seeds]


def row(task: Task, trained: dict[str, Any]) -> dict[str, Any]:
    """Verify each recipe that advise calls safe for a task."""
    exact = trained["fp32"]
    most = np.mean(exact[: advise_ranking.SEEDS]) + 2 * np.std(exact, ddof=1)
    subject = task.subject(seed=0)
    recorded = record(subject)
    verifier = Verifier(replace(subject, batches=task.batches(0, STEPS)))
    recipes = {}
    for name in advise_ranking.RECIPES:
        trial = find_exceptions(subject, recorded, name)
        if trial.rejected:
            continue
        recipes[name] = {
            "exceptions": sorted(trial.exceptions),
            "unsafe": not np.mean(losses(task, trial, trained)) <= most,
            **verifier.verify(trial.recipe).as_json(),
        }
    return {"task": task.name, "recipes": recipes}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Count the verdicts on safe and on unsafe recipes."""
    counts: dict[str, Counter[str]] = {"safe": Counter(), "unsafe": Counter()}
    passed = []
    for each in rows:
        for name, found in each["recipes"].items():
            counts["unsafe" if found["unsafe"] else "safe"][found["settled"]] += 1
            if found["unsafe"] and found["settled"] == "good":
                passed.append(f"{each['task']}: {name}")
    return {"tasks": len(rows), **counts, "unsafe_and_passed": passed}


def main() -> None:
    """Verify the recipes of the selected tasks, and write them together with the existing rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default="0:40", help="which, as first:last")
    given = parser.parse_args()
    torch.set_num_threads(1)
    trained = {
        each["task"]: each for file in TRAINED for each in json.loads(file.read_text())["tasks"]
    }
    tasks = [*unseen(), *third()]
    first, last = map(int, given.tasks.split(":"))
    before = json.loads(RESULTS.read_text())["tasks"] if RESULTS.exists() else []
    rows = {each["task"]: each for each in before}
    for task in track(tasks[first:last], "tasks"):
        rows[task.name] = row(task, trained[task.name])
        ordered = [rows[each.name] for each in tasks if each.name in rows]
        document = {
            "environment": {"torch": torch.__version__, "python": platform.python_version()},
            "summary": summary(ordered),
            "tasks": ordered,
        }
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    Console().print(summary([rows[each.name] for each in tasks if each.name in rows]))


if __name__ == "__main__":
    main()
