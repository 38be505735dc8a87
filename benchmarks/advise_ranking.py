"""Does advise rank recipes as training does? Twenty small tasks, each trained under ten recipes.

Every task is trained in fp32 and under each recipe, with the exceptions and the loss scale that
advise gives it where it is called safe, as it is where it is rejected. The gap of a recipe is how
far the loss over all training samples, after the last step, is from that of fp32 from the same
weights in the same order of batches. Predicted damage is what advise has found from eight steps.

    python benchmarks/advise_ranking.py --tasks 0:10
    python benchmarks/advise_ranking.py --tasks 10:20
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from planted.faults import FAULTS, Healthy
from planted.nets import Cnn, Gnn, Gru, Mlp, Vit
from rich.console import Console
from rich.progress import track
from scipy.stats import kendalltau
from sklearn import datasets
from torch import nn
from torch.nn import functional

from halfstep import Engine
from halfstep.advise.choose.record import record
from halfstep.advise.choose.rehearse import rehearse
from halfstep.advise.choose.survive import LIMIT, survive
from halfstep.advise.subject import Subject
from halfstep.recipe import recipe as find_recipe
from halfstep.techniques import LossScaleCollapse

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.recipe import Recipe

RESULTS = Path(__file__).parent / "results" / "advise_ranking.json"
RECIPES = (
    *("fp16", "bf16", "o2", "half", "half-bn32"),
    *("bf16-true", "bf16-sr", "bf16-kahan", "fp8", "fp16+act2"),
)
STEPS, BATCH, SEEDS, SEEDS_FP32 = 150, 32, 2, 4


@dataclass(frozen=True)
class Task:
    """Something to train.

    Attributes:
        name: What it is called.
        model: Makes the network.
        inputs: All training samples.
        targets: Their classes, or numbers to regress on.
        optimizer: Makes the optimizer.
    """

    name: str
    model: Callable[[], nn.Module]
    inputs: torch.Tensor
    targets: torch.Tensor
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of a batch."""
        found = model(batch[0]).float()
        if self.targets.is_floating_point():
            return functional.mse_loss(found.squeeze(-1), batch[1])
        return functional.cross_entropy(found, batch[1])

    def batches(self, seed: int, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return batches drawn at random."""
        chance = torch.Generator().manual_seed(seed)
        picked = torch.randint(0, len(self.inputs), (steps, BATCH), generator=chance)
        return [(self.inputs[each], self.targets[each]) for each in picked]

    def subject(self, seed: int) -> Subject:
        """Return what advice is wanted on."""
        torch.manual_seed(seed)
        return Subject(self.name, self.model(), self.loss, self.batches(seed, 8), self.optimizer)


class Adapted(nn.Module):
    """A network of one of the planted families on samples of another shape."""

    def __init__(
        self,
        family: type[nn.Module],
        gate: type[nn.Module],
        shape: tuple[int, ...],
        into: tuple[int, ...],
        classes: int,
    ) -> None:
        super().__init__()
        self.into = into
        self.embed = nn.Linear(math.prod(shape), math.prod(into))
        self.net = family(gate)
        self.net.head = nn.Linear(self.net.head.in_features, classes)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.net(self.embed(values.flatten(1)).unflatten(1, self.into))


def tasks() -> list[Task]:
    """Return the twenty tasks."""
    digits = _scaled(datasets.load_digits())
    wine = _scaled(datasets.load_wine())
    cancer = _scaled(datasets.load_breast_cancer())
    diabetes = _scaled(datasets.load_diabetes())
    diabetes = (diabetes[0], (diabetes[1] - diabetes[1].mean()) / diabetes[1].std())
    sequences = _sequences()
    rows: list[tuple[str, type[nn.Module], str, Any, tuple[int, ...], str]] = [
        ("digits, MLP", Mlp, "", digits, (12,), "sgd"),
        ("digits, MLP, Adam", Mlp, "", digits, (12,), "adam"),
        ("wine, MLP", Mlp, "", wine, (12,), "sgd"),
        ("cancer, MLP, Adam", Mlp, "", cancer, (12,), "adam"),
        ("diabetes, MLP", Mlp, "", diabetes, (12,), "sgd"),
        ("diabetes, MLP, slow", Mlp, "", diabetes, (12,), "slow"),
        ("digits, CNN", Cnn, "", digits, (3, 8, 8), "sgd"),
        ("digits, CNN, slow", Cnn, "", digits, (3, 8, 8), "slow"),
        ("wine, CNN, Adam", Cnn, "", wine, (3, 8, 8), "adam"),
        ("digits, ViT, Adam", Vit, "", digits, (8, 6), "adam"),
        ("cancer, ViT", Vit, "", cancer, (8, 6), "sgd"),
        ("sequences, GRU", Gru, "", sequences, (8, 6), "sgd"),
        ("sequences, GRU, Adam", Gru, "", sequences, (8, 6), "adam"),
        ("digits, GNN", Gnn, "", digits, (8, 6), "sgd"),
        ("digits, MLP, squares", Mlp, "square", digits, (12,), "sgd"),
        ("digits, CNN, root", Cnn, "backward", digits, (3, 8, 8), "sgd"),
        ("cancer, ViT, logits", Vit, "logits", cancer, (8, 6), "sgd"),
        ("sequences, GRU, exp", Gru, "exp", sequences, (8, 6), "sgd"),
        ("wine, GNN, epsilon", Gnn, "epsilon", wine, (8, 6), "sgd"),
        ("digits, MLP, stalled", Mlp, "stalled", digits, (12,), "sgd"),
    ]
    return [
        Task(name, _network(family, fault, data, into), *data, OPTIMIZERS[optimizer])
        for name, family, fault, data, into, optimizer in rows
    ]


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    "slow": lambda model: torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=3e-3),
}


def _network(
    family: type[nn.Module], fault: str, data: tuple[torch.Tensor, torch.Tensor], into: Any
) -> Callable[[], nn.Module]:
    inputs, targets = data
    classes = 1 if targets.is_floating_point() else int(targets.max()) + 1
    gate = FAULTS[fault] if fault else Healthy
    return lambda: Adapted(family, gate, tuple(inputs.shape[1:]), into, classes)


def _scaled(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.tensor(data.data, dtype=torch.float32)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0).clamp(min=1e-3)
    return inputs, torch.tensor(
        data.target, dtype=torch.float32 if data.target.dtype.kind == "f" else torch.int64
    )


def _sequences() -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences of eight steps; the class is where their noise has a bump."""
    chance = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (512,), generator=chance)
    values = torch.randn(512, 8, 6, generator=chance)
    values[torch.arange(512), labels * 2] += 1.5
    return values, labels


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


def row(task: Task) -> dict[str, Any]:
    """Advise on a task, and train it under every recipe."""
    exact = [final_loss(task, "fp32", seed) for seed in range(SEEDS_FP32)]
    subject = task.subject(seed=0)
    recorded = record(subject)
    found: dict[str, Any] = {"task": task.name, "fp32": exact, "recipes": {}}
    for name in RECIPES:
        trial = survive(subject, recorded, name)
        used = trial.base if trial.rejected else trial.recipe
        found_by = trial.rehearsal
        if trial.rejected or found_by is None:
            found_by = rehearse(subject, recorded, find_recipe(name))
        found["recipes"][name] = {
            "safe": not trial.rejected,
            "rejected": trial.rejected,
            "exceptions": list(trial.exceptions),
            "damage": found_by.damage,
            "gradient_damage": found_by.gradient_damage,
            "update_noise": found_by.update_noise,
            "update_bias": found_by.update_bias,
            "first_scale": None if trial.recipe.scaling is None else trial.recipe.scaling.init,
            "losses": [final_loss(task, used, seed) for seed in range(SEEDS)],
        }
    return found


def gap(each: dict[str, Any], exact: list[float]) -> float:
    """Return how far a recipe's final losses are from those of fp32, the mean over seeds."""
    return float(
        np.mean([abs(loss - right) for loss, right in zip(each["losses"], exact, strict=False)])
    )


BROKEN = 1e9
"""Stands for an infinite gap or damage: recipes that break are alike."""


def rank(damages: list[float], gaps: list[float]) -> float:
    """Return Kendall's tau-b; 1 where neither tells recipes apart."""
    if len(set(damages)) == 1 and len(set(gaps)) == 1:
        return 1.0
    found = float(kendalltau(damages, gaps).statistic)
    return found if math.isfinite(found) else 0.0


def judge(each: dict[str, Any]) -> None:
    """Add to a task's row what its figures come to."""
    recipes = each["recipes"]
    noise = each["noise"] = float(np.std(each["fp32"], ddof=1))
    exact = float(np.mean(each["fp32"][:SEEDS]))
    damages = [min(found["damage"], BROKEN) for found in recipes.values()]
    gaps = [min(gap(found, each["fp32"]), BROKEN) for found in recipes.values()]
    each["gaps"] = dict(zip(recipes, gaps, strict=True))
    each["tau"] = rank(damages, gaps)
    # Below, rounding is called free, and seeds differ by more.
    floored = [max(damage, LIMIT) for damage in damages], [max(value, noise) for value in gaps]
    each["tau_beyond_noise"] = rank(*floored)
    means = {name: float(np.mean(found["losses"])) for name, found in recipes.items()}
    safe = [name for name, found in recipes.items() if found["safe"]]
    each["unsafe"] = [name for name in safe if not means[name] - exact <= 2 * noise]
    each["recommended"] = min(safe, key=lambda name: recipes[name]["damage"])
    each["regret"] = (means[each["recommended"]] - min(*means.values(), exact)) / noise


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how well damage ranks gaps, and what came of the advice."""
    damages = [min(found["damage"], BROKEN) for each in rows for found in each["recipes"].values()]
    gaps = [value / each["noise"] for each in rows for value in each["gaps"].values()]
    return {
        "tasks": len(rows),
        "recipes": len(RECIPES),
        "tau_median": float(np.median([each["tau"] for each in rows])),
        "tau_mean": float(np.mean([each["tau"] for each in rows])),
        "tau_beyond_noise_mean": float(np.mean([each["tau_beyond_noise"] for each in rows])),
        "tau_of_all": rank(damages, gaps),
        "tau_of_all_beyond_noise": rank(
            [max(each, LIMIT) for each in damages], [max(each, 1.0) for each in gaps]
        ),
        "called_safe": sum(found["safe"] for each in rows for found in each["recipes"].values()),
        "unsafe": [f"{each['task']}: {name}" for each in rows for name in each["unsafe"]],
        "regret_within_noise": float(np.mean([each["regret"] <= 1 for each in rows])),
        "largest_regret": max(each["regret"] for each in rows),
    }


def main() -> None:
    """Run tasks, and write what came of them beside those that were run before."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default="0:20", help="which, as first:last")
    given = parser.parse_args()
    torch.set_num_threads(1)
    first, last = map(int, given.tasks.split(":"))
    kept = json.loads(RESULTS.read_text())["tasks"] if RESULTS.exists() else []
    rows = {each["task"]: each for each in kept}
    for task in track(tasks()[first:last], "tasks"):
        rows[task.name] = row(task)
        judge(rows[task.name])
        document = {
            "environment": {"torch": torch.__version__, "python": platform.python_version()},
            "summary": summary(list(rows.values())),
            "tasks": list(rows.values()),
        }
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    Console().print(summary(list(rows.values())))


if __name__ == "__main__":
    main()
