"""Times the pause of a run for a checkpoint, and the extra time, with and without a thread.

    python benchmarks/checkpoints.py

A model is trained with SGD and momentum for some steps, in three ways that take turns: without a
checkpoint; with a checkpoint after the first step that is written before the next step; and with a
checkpoint that is copied after the first step and written in the background, as a run does above a
number of bytes. Each write reaches the disk (fsync), and the time includes its end. The small
models show from which size on a thread is faster.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import docs_table
import quiet_machine
import timm
import torch
from torch.nn import functional

from halfstep import Engine
from halfstep.train.store import checkpoint, random_state, snapshot
from halfstep.train.store.background import Background
from halfstep.train.store.checkpoint import Checkpoint

RESULTS = Path(__file__).parent / "results" / "checkpoints.json"
ROUNDS = 7
CHOSEN = snapshot.LEAST_BYTES


@dataclass(frozen=True)
class Case:
    """A model, and a number of steps that take longer than a write of its checkpoint."""

    model: str
    pixels: int = 64
    batch: int = 16
    steps: int = 4
    settings: dict[str, Any] = field(default_factory=dict)


def _resnet(channels: int, steps: int) -> Case:
    widths = [channels * factor for factor in (1, 2, 4, 8)]
    return Case("resnet18", 32, 8, steps, {"channels": widths})


CASES = {
    "resnet18, 2 channels": _resnet(2, 4),
    "resnet18, 4 channels": _resnet(4, 4),
    "resnet18, 8 channels": _resnet(8, 4),
    "resnet18, 16 channels": _resnet(16, 4),
    "resnet18": Case("resnet18"),
    "resnet50": Case("resnet50", 64, 8),
    "vit_small_patch16_224": Case("vit_small_patch16_224", 224, 2),
}
IN_THE_DOCS = ("resnet18", "resnet50", "vit_small_patch16_224")


class Trained:
    """A model in training that can be saved."""

    def __init__(self, case: Case) -> None:
        model = timm.create_model(case.model, num_classes=10, **case.settings)
        self._engine = Engine(model, torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9))
        self._images = torch.randn(case.batch, 3, case.pixels, case.pixels)
        self._labels = torch.arange(case.batch) % 10

    def step(self) -> None:
        """Take a training step."""
        with self._engine.autocast():
            loss = functional.cross_entropy(self._engine.model(self._images), self._labels)
        self._engine.backward(loss)
        self._engine.step()

    def state(self) -> Checkpoint:
        """Return the checkpoint that a run would write."""
        return Checkpoint(
            model=self._engine.bare_model.state_dict(),
            averaged=None,
            engine=self._engine.state_dict(),
            schedule={},
            epoch=0,
            batch=1,
            step=1,
            validated=False,
            loss=0.0,
            accuracy=0.0,
            classes=("one", "another"),
            preprocessing={},
            rng=random_state.capture(),
            progress={},
            config={},
        )


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Let the three ways take turns; return the bytes of a checkpoint, and the seconds by way."""
    trained, copies, file = Trained(case), snapshot.Copies(), folder / "some.pt"
    writing: list[Background[None]] = []

    def written() -> None:
        checkpoint.save(file, trained.state())

    def in_background() -> None:
        copied = copies.of(trained.state())
        assert copied is not None
        writing.append(Background(partial(checkpoint.save, file, copied)))

    ways = {"none": lambda: None, "synchronous": written, "background": in_background}
    pauses: dict[str, list[float]] = {name: [] for name in ways}
    whole: dict[str, list[float]] = {name: [] for name in ways}
    trained.step()
    for _ in range(ROUNDS):
        for name, save in ways.items():
            began = time.perf_counter()
            trained.step()
            stopped = time.perf_counter()
            save()
            pauses[name].append(time.perf_counter() - stopped)
            for _ in range(case.steps - 1):
                trained.step()
            while writing:
                writing.pop().result()
            whole[name].append(time.perf_counter() - began)
    return {
        "bytes": file.stat().st_size,
        "step": _summary([each / case.steps for each in whole["none"]]),
        **{
            name: {
                "pause": _summary(pauses[name]),
                "extra": _summary(
                    [one - other for one, other in zip(whole[name], whole["none"], strict=True)]
                ),
            }
            for name in ways
            if name != "none"
        },
    }


def _summary(seconds: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(seconds, n=4)
    return {"median": round(median, 5), "low": round(low, 5), "high": round(high, 5)}


def table(document: dict[str, Any]) -> list[str]:
    """Return the docs' table."""
    columns = ["checkpoint of", "size, MB"]
    columns += ["pause, synchronous", "pause, background"]
    columns += ["extra time, synchronous", "extra time, background"]
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for name in IN_THE_DOCS:
        row = document["models"][name]
        ways = row["synchronous"], row["background"]
        cells = [
            f"{1e3 * each['median']:.0f} ms ({1e3 * each['low']:.0f} to {1e3 * each['high']:.0f})"
            for each in [way[what] for what in ("pause", "extra") for way in ways]
        ]
        lines.append(f"| {name} | {row['bytes'] / 1e6:.0f} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure, print and write the results."""
    torch.set_num_threads(1)
    snapshot.LEAST_BYTES = 0
    with tempfile.TemporaryDirectory(dir=".") as folder, quiet_machine.watched() as seen:
        found = {name: measure(case, Path(folder)) for name, case in CASES.items()}
    environment = {"cores": os.cpu_count(), "torch": torch.__version__, "rounds": ROUNDS}
    document = {"environment": {**environment, "least_bytes": CHOSEN}, "models": found}
    quiet_machine.keep(RESULTS, document, seen)
    docs_table.put("performance.md", "checkpoints", table(document))


if __name__ == "__main__":
    main()
