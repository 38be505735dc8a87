"""Checks that advise excepts the layers that fp16 breaks, and no others: planted faults.

Each network is from one of five families (MLP, CNN, ViT, GRU, GNN). One module of it, `gate`, is
healthy or needs fp32. In ten networks, the forward of the model itself contains the operation of
the faulty module. A fault is found if there is an exception for that place. Every other excepted
module counts as an error. Then each exception is left out of a rehearsed training of eight steps,
which shows whether the training needs the exception.

    python benchmarks/advise_exceptions.py
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from planted.faults import FAULTS, Healthy
from planted.nets import SHAPES, Cnn, Gnn, Gru, Mlp, Vit, loss, planted
from rich.console import Console
from rich.progress import track

from halfstep import Engine
from halfstep.advise.choose.exceptions import find_exceptions
from halfstep.advise.choose.record import record
from halfstep.advise.subject import Subject
from halfstep.mechanisms.loss_scale.scaler import LossScaleCollapse

if TYPE_CHECKING:
    from torch import nn

    from halfstep.advise.choose.trial import Trial

RESULTS = Path(__file__).parent / "results" / "advise_exceptions.json"
# The recipes under which each fault has an effect. Most faults need parameters in fp16, because
# autocast keeps exp and norms in fp32.
BASES = {
    "logits": ("fp16", "o2"),
    "exp": ("o2",),
    "square": ("fp16", "o2"),
    "epsilon": ("o2",),
    "backward": ("fp16", "o2"),
    "sum": ("o2",),
    "stalled": ("half-bn32",),
}
OUTSIDE = {
    Mlp: ("square", "epsilon"),
    Cnn: ("exp", "backward"),
    Vit: ("logits", "square"),
    Gru: ("exp", "epsilon"),
    Gnn: ("logits", "backward"),
}
"""The faults in the forward of the model itself, by family."""
HEALTHY = ("fp16", "o2", "bf16", "bf16-sr", "half-bn32")


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD with momentum and a learning rate with which these networks train."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def subject_of(
    family: type[nn.Module], gate: type[nn.Module], seed: int, *, in_a_module: bool = True
) -> Subject:
    """Return a network with its batches, as the input of advise."""
    model, batches = planted(family, gate, seed=seed, in_a_module=in_a_module)
    return Subject(family.__name__, model, loss, batches, sgd)


def breaks(subject: Subject, trial: Trial, without: str) -> bool:
    """Tell whether eight steps fail under a trial's recipe without one of its exceptions."""
    kept = [pattern for pattern in trial.exceptions if pattern != without]
    spec: dict[str, Any] = {"base": trial.base, "exceptions": dict.fromkeys(kept, "fp32") or None}
    if trial.recipe.scaling is not None:
        spec["loss_scale"] = trial.recipe.scaling
    model, exact = subject.copied(), subject.copied()
    start = {name: param.detach().clone() for name, param in model.named_parameters()}
    skipped = 0
    try:
        optimizer = subject.optimizer(model)
        with Engine(model, optimizer, recipe=spec, nonfinite="apply") as engine:
            for batch in subject.batches:
                with engine.autocast():
                    found = subject.loss(engine.model, batch)
                engine.backward(found)
                skipped += not engine.step().stepped
            weights = {name: value.float() for name, value in model.state_dict().items()}
    except (TypeError, LossScaleCollapse):  # TypeError: formats that torch does not combine
        return True
    optimizer = subject.optimizer(exact)
    for batch in subject.batches:
        optimizer.zero_grad()
        right = subject.loss(exact, batch)
        right.backward()
        optimizer.step()
    if skipped > 2 or not math.isfinite(float(found.detach())):
        return True
    off = {
        name: float((weights[name] - param).norm() / (param - start[name]).norm().clamp(min=1e-12))
        for name, param in exact.named_parameters()
        if param.dim() > 1
    }
    return not all(math.isfinite(each) for each in off.values()) or max(off.values()) > 0.5


def faulty_rows() -> list[dict[str, Any]]:
    """Advise on each family with each fault, under the recipes in which the fault has an effect."""
    cases = [
        (family, fault, base, seed, place)
        for seed, family in enumerate(SHAPES)
        for place, faults in (("gate", FAULTS), ("op", OUTSIDE[family]))
        for fault in faults
        for base in BASES[fault]
    ]
    rows = []
    for family, fault, base, seed, place in track(cases, "planted faults"):
        subject = subject_of(family, FAULTS[fault], seed, in_a_module=place == "gate")
        trial = find_exceptions(subject, record(subject), base)
        modules = {pattern.replace(":", ".").split(".")[0] for pattern in trial.exceptions}
        rows.append(
            {
                "family": family.__name__,
                "fault": fault,
                "in": "a module" if place == "gate" else "the model's own forward",
                "recipe": base,
                "exceptions": list(trial.exceptions),
                "rejected": trial.rejected,
                "found": int(place in modules),
                "missed": int(place not in modules),
                "too_many": len(modules - {place}),
                "passes": trial.passes,
                "needed": [breaks(subject, trial, each) for each in trial.exceptions],
            }
        )
    return rows


def healthy_rows() -> list[dict[str, Any]]:
    """Advise on networks that need no exceptions: five families with five seeds each."""
    rows = []
    cases = [(family, seed) for family in SHAPES for seed in range(10, 15)]
    for family, seed in track(cases, "healthy networks"):
        subject = subject_of(family, Healthy, seed)
        recorded = record(subject)
        layers = sum(1 for module in subject.model.modules() if not list(module.children()))
        for base in HEALTHY:
            trial = find_exceptions(subject, recorded, base)
            rows.append(
                {
                    "family": family.__name__,
                    "seed": seed,
                    "recipe": base,
                    "layers": layers,
                    "exceptions": list(trial.exceptions),
                    "rejected": trial.rejected,
                    "passes": trial.passes,
                }
            )
    return rows


def main() -> None:
    """Advise on all networks, and write the results."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    faulty, healthy = faulty_rows(), healthy_rows()
    found, missed, extra = (sum(r[key] for r in faulty) for key in ("found", "missed", "too_many"))
    needed = [each for row in faulty for each in row["needed"]]
    layers = sum(row["layers"] for row in healthy)
    summary = {
        "networks_with_faults": len({(row["family"], row["fault"], row["in"]) for row in faulty}),
        "trials_with_faults": len(faulty),
        "f1": 2 * found / (2 * found + missed + extra),
        "exceptions_needed": sum(needed) / max(1, len(needed)),
        "healthy_networks": len({(row["family"], row["seed"]) for row in healthy}),
        "healthy_layers_excepted": sum(len(row["exceptions"]) for row in healthy) / layers,
        "healthy_rejected": sum(bool(row["rejected"]) for row in healthy),
        "most_passes": max(row["passes"] for row in [*faulty, *healthy]) + 8,
    }
    Console().print(summary)
    for row in faulty:
        if row["missed"] or row["too_many"] or row["rejected"] or not all(row["needed"]):
            Console().print(row)
    for row in healthy:
        if row["exceptions"] or row["rejected"]:
            Console().print(row)
    environment = {"torch": torch.__version__, "python": platform.python_version()}
    document = {
        "environment": environment,
        "summary": summary,
        "faulty": faulty,
        "healthy": healthy,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
