"""How long a run stands still for its checkpoints, and how much of that another thread could take.

    python benchmarks/checkpoints.py

A checkpoint of a model, SGD's momentum and the engine's state is written as a run writes it: to
disk, whole before it has its name (fsync). In the background, the run would stand still while a
copy of the tensors is made, and write that in a thread while steps go on. Both are measured in
turns, with the processor time of the writing, which another thread takes from the step on machines
that have no core to spare.
"""

from __future__ import annotations

import copy
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import docs_table
import quiet_machine
import timm
import torch
from torch.nn import functional

from halfstep import Engine
from halfstep.files import write_atomically

RESULTS = Path(__file__).parent / "results" / "checkpoints.json"
MODELS = {"resnet18": 64, "resnet50": 64, "vit_small_patch16_224": 224}
ROUNDS = 7


def state_of(name: str, pixels: int) -> dict[str, object]:
    """Return what a checkpoint has of a model that was trained for a step."""
    model = timm.create_model(name, num_classes=10)
    engine = Engine(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))
    with engine.autocast():
        logits = engine.model(torch.randn(2, 3, pixels, pixels))
        loss = functional.cross_entropy(logits, torch.tensor([1, 2]))
    engine.backward(loss)
    engine.step()
    return {"model": engine.bare_model.state_dict(), "engine": engine.state_dict()}


def measure(name: str, pixels: int, folder: Path) -> dict[str, object]:
    """Write and copy in turns."""
    state, file = state_of(name, pixels), folder / "some.pt"
    taken: dict[str, list[float]] = {"write": [], "write, processor": [], "copy": []}
    for _ in range(ROUNDS):
        began, used = time.perf_counter(), time.process_time()
        write_atomically(file, partial(torch.save, state))
        taken["write"].append(time.perf_counter() - began)
        taken["write, processor"].append(time.process_time() - used)
        began = time.perf_counter()
        copy.deepcopy(state)
        taken["copy"].append(time.perf_counter() - began)
    seconds = {
        what: {
            "median": round(statistics.median(each), 4),
            "low": round(min(each), 4),
            "high": round(max(each), 4),
        }
        for what, each in taken.items()
    }
    return {"megabytes": round(file.stat().st_size / 1e6, 1), "seconds": seconds}


def table(document: dict[str, Any]) -> list[str]:
    """Return the docs' table."""
    lines = [
        "| checkpoint of | size, MB | time to write | time to copy |",
        "| --- | --- | --- | --- |",
    ]
    for name, row in document["models"].items():
        write, copied = (
            f"{1e3 * each['median']:.0f} ms ({1e3 * each['low']:.0f} to {1e3 * each['high']:.0f})"
            for each in (row["seconds"]["write"], row["seconds"]["copy"])
        )
        lines.append(f"| {name} | {row['megabytes']:.0f} | {write} | {copied} |")
    return lines


def main() -> None:
    """Measure, print and keep."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=".") as folder, quiet_machine.watched() as seen:
        found = {name: measure(name, pixels, Path(folder)) for name, pixels in MODELS.items()}
    environment = {"cores": os.cpu_count(), "torch": torch.__version__, "rounds": ROUNDS}
    document = {"environment": environment, "models": found}
    quiet_machine.keep(RESULTS, document, seen)
    docs_table.put("performance.md", "checkpoints", table(document))


if __name__ == "__main__":
    main()
