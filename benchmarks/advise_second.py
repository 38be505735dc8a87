"""Checks the exceptions of advise in networks by an author who had not read the rules of advise.

`benchmarks/planted/second` contains 24 networks with planted faults, 16 healthy trainings, and the
list of the calls that must be excepted. This list was verified without advise, and committed before
advise ran on any of the networks:

    python benchmarks/planted/second/verify.py
    python benchmarks/advise_second.py first      # or: mended

A fault is found if there is an exception for its module, for a part of the module, or for a module
that contains it. Every other exception counts as an error. Then each exception is left out of the
advised recipe, which shows whether the recipe breaks without it: by the criterion of `verify.py`,
or in a training of eight steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import track
from typer.testing import CliRunner

from halfstep import Engine
from halfstep.cli import app
from halfstep.mechanisms.loss_scale.scaler import LossScaleCollapse

SECOND = Path(__file__).parent / "planted" / "second"
sys.path.insert(0, str(SECOND))
import verify  # noqa: E402
from truth import FAULTY, HEALTHY  # noqa: E402

if TYPE_CHECKING:
    from truth import Net

RESULTS = Path(__file__).parent / "results" / "advise_second.json"


def advised(net: Net) -> list[dict[str, Any]]:
    """Return the output of `halfstep advise --json` for each recipe of a network."""
    words = ["advise", net.build, "--batches", f"data.py:{net.batches}", "--json", "--no-verify"]
    words += ["--recipes", ",".join(net.recipes), "--lr", str(net.lr)]
    words += ["--loss", net.loss] if net.loss else []
    before = Path.cwd()
    os.chdir(SECOND)
    try:
        result = CliRunner().invoke(app, words)
    finally:
        os.chdir(before)
    if result.exit_code:
        raise RuntimeError(f"{net.name}: {result.output}") from result.exception
    recipes: list[dict[str, Any]] = json.loads(result.stdout)["recipes"]
    return recipes


def around(exception: str, place: str) -> bool:
    """Tell whether an exception is for a place, a part of it, or a module that contains it."""
    return (
        exception == place or exception.startswith(f"{place}.") or place.startswith(f"{exception}.")
    )


def fails(net: Net, config: dict[str, Any]) -> bool:
    """Train eight steps under a config, and tell whether the training fails.

    It fails if it raises an exception, if more than two steps are skipped, or if the error of the
    weights is more than half of their total update in fp32.
    """
    model, batches, loss = verify.made(net)
    exact = verify.made(net)[0]
    start = verify.flat_weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=net.lr, momentum=0.9)
    skipped = 0
    try:
        with Engine(model, optimizer, recipe=config, nonfinite="apply") as engine:
            for batch in batches:
                with engine.autocast():
                    value = loss(engine.model, batch)
                engine.backward(value)
                skipped += not engine.step().stepped
            got = verify.flat_weights(model)
    except (RuntimeError, TypeError, LossScaleCollapse):
        return True
    optimizer = torch.optim.SGD(exact.parameters(), lr=net.lr, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        loss(exact, batch).backward()
        optimizer.step()
    right = verify.flat_weights(exact)
    off = float((got - right).norm() / (right - start).norm().clamp(min=1e-12))
    return skipped > 2 or not off <= 0.5


def needed(net: Net, row: dict[str, Any], without: str) -> bool:
    """Tell whether an advised recipe breaks without one of its exceptions."""
    kept = [each for each in row["exceptions"] if each != without]
    config = dict(row["config"])
    config["exceptions"] = dict.fromkeys(kept, "fp32")
    if not kept:
        del config["exceptions"]
    return verify.verdict(net, row["recipe"], kept) is not None or fails(net, config)


def rows() -> list[dict[str, Any]]:
    """Advise on each network, and compare the exceptions with the true faults."""
    found = []
    for net in track((*FAULTY, *HEALTHY), "networks"):
        model = verify.made(net)[0]
        layers = sum(1 for module in model.modules() if not list(module.children()))
        for row in advised(net):
            faults = [fault for fault in net.faults if row["recipe"] in fault.recipes]
            exceptions = list(row["exceptions"])
            hit = [f for f in faults if any(around(each, f.place) for each in exceptions)]
            other = [e for e in exceptions if not any(around(e, f.place) for f in faults)]
            found.append(
                {
                    "network": net.name,
                    "loss": net.loss,
                    "recipe": row["recipe"],
                    "healthy": net in HEALTHY,
                    "layers": layers,
                    "exceptions": exceptions,
                    "rejected": row["rejected"],
                    "damage": row["damage"],
                    "found": [fault.kind for fault in hit],
                    "missed": [fault.kind for fault in faults if fault not in hit],
                    "in_other_places": other,
                    "needed": {each: needed(net, row, each) for each in exceptions},
                }
            )
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the F1 score of the exceptions, also by kind of fault, and the counts behind it."""

    def f1(kind: str | None) -> float:
        hit, missed = (
            sum(kind in {None, each} for row in found for each in row[key])
            for key in ("found", "missed")
        )
        extra = sum(len(row["in_other_places"]) for row in found) if kind is None else 0
        return 2 * hit / (2 * hit + missed + extra)

    healthy = [row for row in found if row["healthy"]]
    necessary = [each for row in found for each in row["needed"].values()]
    kinds = sorted({each for row in found for each in (*row["found"], *row["missed"])})
    return {
        "faults": sum(len(row["found"]) + len(row["missed"]) for row in found),
        "missed": sum(len(row["missed"]) for row in found),
        "in_other_places": sum(len(row["in_other_places"]) for row in found),
        "f1": f1(None),
        "f1_by_fault": {kind: f1(kind) for kind in kinds},
        "exceptions": len(necessary),
        "exceptions_needed": sum(necessary) / max(1, len(necessary)),
        "healthy_trials": len(healthy),
        "healthy_layers_excepted": sum(len(row["exceptions"]) for row in healthy)
        / sum(row["layers"] for row in healthy),
        "rejected": sum(bool(row["rejected"]) for row in found),
    }


def main() -> None:
    """Advise, score, and write the result under the given name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=("first", "mended"), help="which version of advise this is")
    name = parser.parse_args().name
    torch.set_num_threads(1)
    found = rows()
    console = Console()
    console.print(summary(found))
    for row in found:
        if row["missed"] or row["in_other_places"] or not all(row["needed"].values()):
            console.print(row)
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    document[name] = {"torch": torch.__version__, "summary": summary(found), "rows": found}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
