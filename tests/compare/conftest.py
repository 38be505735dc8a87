"""Comparisons whose cells are a program of a few lines instead of a training."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from halfstep.compare.plan.grid import Cell, Grid, build_grid

from . import synthetic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from halfstep.compare.cells.results import Result

# Arguments: run directory, recipe, seed, device. Appends to a file each time that it runs.
FAKE_TRAINING = """
import json, os, pathlib, signal, sys, time

run, recipe, seed, ran = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
with open(ran, "a") as file:
    file.write(f"{recipe} {seed}\\n")
run.mkdir(exist_ok=True)
summary = {
    "status": "finished", "recipe": recipe, "seed": seed, "best_accuracy": 0.9 + 0.01 * seed,
    "final_accuracy": 0.89, "train_seconds": 2.0, "wall_seconds": 3.0,
    "images_per_second": 100.0 if recipe == "fp32" else 250.0, "peak_memory_bytes": 3 * 2**20,
    "peak_memory_kind": "resident-rise", "skipped_steps": 1, "first_nonfinite_step": None,
    "final_val_loss": 0.5, "error": None,
}
behaviour = BEHAVIOURS.get(recipe)
if behaviour == "waits":
    print("running", flush=True)
    (run / "config.yaml").write_text("unfinished")
    pathlib.Path(ran + ".waiting").touch()
    time.sleep(60)
elif behaviour == "raises":
    print("about to raise")
    print("a warning", file=sys.stderr)
    raise RuntimeError("no space left in the cupboard")
elif behaviour == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif behaviour == "segfaults":
    os.kill(os.getpid(), signal.SIGSEGV)
elif behaviour == "fills the disk":
    with open("/dev/full", "w") as file:
        file.write("a checkpoint")
elif behaviour == "waits for the other":
    others = run.parent.parent / "here"
    others.mkdir(exist_ok=True)
    (others / f"{recipe}-{seed}").touch()
    while len(list(others.iterdir())) < 2:
        time.sleep(0.01)
elif behaviour == "waits for luck":
    summary["best_accuracy"] += 0.02 * (seed == 0)
elif behaviour == "silent":
    sys.exit(3)
elif behaviour == "nonfinite":
    summary |= {"status": "nonfinite", "best_accuracy": None, "final_accuracy": None,
                "final_val_loss": "nan", "first_nonfinite_step": 7,
                "error": "the loss was nan at step 7"}
(run / "summary.json").write_text(json.dumps(summary))
sys.exit(summary["status"] != "finished")
"""


class FakeTraining:
    """The command of a cell, and a record of which cells ran."""

    def __init__(self, folder: Path) -> None:
        self.ran_file = folder / "ran.txt"
        self.script = folder / "fake_training.py"
        self.devices: list[str] = []
        self.behave()

    def behave(self, **behaviours: str) -> None:
        """Give recipes a behaviour other than finishing."""
        self.script.write_text(FAKE_TRAINING.replace("BEHAVIOURS", repr(behaviours)))

    def __call__(self, cell: Cell, device: str) -> list[str]:
        self.devices.append(device)
        arguments = [str(cell.run_directory), cell.recipe, str(cell.seed), str(self.ran_file)]
        return [sys.executable, str(self.script), *arguments]

    @property
    def ran(self) -> list[str]:
        """The cells that ran so far, such as "fp16 0"."""
        return self.ran_file.read_text().splitlines() if self.ran_file.exists() else []


@pytest.fixture
def training(tmp_path: Path) -> FakeTraining:
    return FakeTraining(tmp_path)


@pytest.fixture
def fill() -> Callable[[Grid], list[Result]]:
    return synthetic.fill


@pytest.fixture
def make_grid(tmp_path: Path) -> Callable[..., Grid]:
    def make(
        recipes: Sequence[str] = ("fp32", "fp16", "bf16"),
        seeds: Sequence[int] = (0,),
        lr: float = 0.1,
        points: Sequence[tuple[str, ...]] = ((),),
        processes: int = 1,
    ) -> Grid:
        return build_grid(
            "digits",
            device="cpu",
            recipes=recipes,
            seeds=seeds,
            options=(),
            directory=tmp_path / "comparison",
            resolve=lambda name, seed, point: {
                "recipe": name,
                "seed": seed,
                "optimizer": {"lr": lr},
                "epochs": 4,
                **dict(override.split("=", 1) for override in point),
                **({"processes": processes} if processes > 1 else {}),
            },
            points=points,
        )

    return make
