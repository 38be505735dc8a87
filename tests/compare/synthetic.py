"""Run directories of trainings that never were, with figures whose meaning is known."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from halfstep.compare.cells.directory import prepare, result_of
from halfstep.compare.cells.results import Result

if TYPE_CHECKING:
    from halfstep.compare.plan.grid import Cell, Grid

ENVIRONMENT = {
    "python": "3.12.4",
    "halfstep": "0.1.0",
    "torch": "2.15.0",
    "device": "cuda:0",
    "device_name": "Imaginary GPU",
    "threads": 4,
}
SPEED = {"fp32": 1.0, "fp16": 2.4, "bf16": 2.3, "o3": 2.6}
STEPS = 60


def summary(status: str = "finished", **changes: Any) -> dict[str, Any]:
    """Return a summary as a run writes it."""
    return {
        "status": status,
        "best_accuracy": 0.9778,
        "final_accuracy": 0.9722,
        "train_seconds": 124.3,
        "wall_seconds": 3725.0,
        "images_per_second": 91.83,
        "peak_memory_bytes": 812 * 2**20,
        "peak_memory_kind": "device",
        "skipped_steps": 3,
        "first_nonfinite_step": None,
        "error": None,
    } | changes


def fill(grid: Grid) -> list[Result]:
    """Write a run directory for every cell; o3 goes non-finite, and fp16's last seed crashes."""
    results = []
    for cell in grid.cells:
        prepare(cell)
        cell.run_directory.mkdir(exist_ok=True)
        if cell.recipe == "fp16" and cell.seed == grid.seeds[-1] and len(grid.seeds) > 2:
            results.append(Result(cell, "crashed", "killed by SIGSEGV"))
            continue
        _write(cell)
        results.append(result_of(cell))
    return results


def _write(cell: Cell) -> None:
    speed = SPEED[cell.recipe]
    broken = cell.recipe == "o3"
    best = 0.93 + 0.004 * cell.seed + 0.001 * (cell.recipe != "fp32") * (1 - cell.seed)
    changes: dict[str, Any] = {
        "best_accuracy": None if broken else best,
        "final_accuracy": None if broken else best - 0.003,
        "train_seconds": 100.0 / speed + cell.seed,
        "images_per_second": 500.0 * speed,
        "peak_memory_bytes": round(900 * 2**20 / speed),
        "held_bytes": {
            "parameters": 50 * 2**20,
            "activations": 200 * 2**20,
            "compressed": 30 * 2**20 if cell.recipe == "fp16" else None,
        },
        "formats": {
            "shares": {cell.recipe: 0.97, "fp32": 0.03},
            "exceptions": {"head.norm": "fp32: the recipe keeps the layer in fp32"},
        },
        "newest": {"gradient_cosine": 0.999},
        "unchanged_share": 0.25,
        "skipped_steps": 2 if cell.recipe == "fp16" else 0,
        "rehearsed": ["autocast bf16: rehearsed (no bf16 units)"] if cell.recipe == "bf16" else [],
    }
    if broken:
        changes |= {"first_nonfinite_step": 12, "error": "the loss was nan at step 12"}
    written = summary("nonfinite" if broken else "finished", **changes)
    lines = []
    for step in range(1, STEPS + 1):
        loss = 2.3 * math.exp(-step / (20 + cell.seed)) + 0.1 + 0.01 * math.sin(step * speed)
        scale = 65536.0 / 2 ** (step > 10) if cell.recipe == "fp16" else 1.0
        lost = broken and step >= 12
        figures = {"step": step, "loss": "nan" if lost else loss, "loss_scale": scale}
        lines.append({"kind": "train", **figures, "grad_norm": "nan" if lost else 1 + loss})
        if lost:
            break
        if step % 15 == 0:
            share = best * (1 - math.exp(-step / 15))
            lines.append({"kind": "val", "step": step, "epoch": step // 15, "accuracy": share})
            looked = {"gradient_cosine": 1 - share / 100, "unchanged_share": share / 4}
            lines.append({"kind": "probe", "step": step, **looked})
    run = cell.run_directory
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (run / "summary.json").write_text(json.dumps(written))
