"""Measures the time that doctor adds to a training step on a GPU.

    python benchmarks/gpu_doctor.py --out gpu_doctor.json

A plain step of PyTorch's own loop and the same step under doctor take turns. In each turn, the
first `--skipped` steps are not measured: doctor examines the first steps of a program more closely.
A ratio is relative to the plain steps of the same round. Without a gradient scaler, doctor waits
for the device once per step, and with `hold_back` it does not.

On a CPU (`--device cpu`), the steps are timed by the clock.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import gpu_steps
import quiet_machine
import torch

from halfstep.doctor import Watch

RECIPES = ("fp32", "bf16", "fp16")
WAYS = {"doctor": {"waits": True}, "doctor, hold_back": {"waits": True, "hold_back": True}}


@dataclass(frozen=True)
class Row:
    """The time of a step under doctor, relative to the plain step of the same round.

    Attributes:
        model: The name of the model.
        batch: The number of images.
        recipe: "fp32", "bf16" or "fp16"; fp16 has a gradient scaler.
        way: How doctor watches.
        plain_milliseconds: Time of the plain step, the median over rounds.
        ratio: The median over rounds.
        low: The lowest ratio.
        high: The highest ratio.
        troubles: Errors in doctor's own work.
    """

    model: str
    batch: int
    recipe: str
    way: str
    plain_milliseconds: float
    ratio: float
    low: float
    high: float
    troubles: list[str]


def measure(
    setting: gpu_steps.Setting, recipe: str, *, rounds: int, steps: int, skipped: int
) -> list[Row]:
    """Let a plain loop and the watched loops take turns on one model."""
    batch = gpu_steps.batch_of(setting)
    step = gpu_steps.by_torch(setting, recipe)
    gpu_steps.seconds(step, batch, skipped)
    taken: dict[str, list[float]] = {"plain": [], **{way: [] for way in WAYS}}
    troubles: dict[str, list[str]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, times in taken.items():
            watch = Watch(**WAYS[way]) if way in WAYS else None
            with watch or nullcontext():
                gpu_steps.seconds(step, batch, skipped)
                times.append(gpu_steps.seconds(step, batch, steps))
                if watch is not None:
                    troubles[way] += watch.troubles
                    watch.abandon()  # a diagnosis would repeat the last step
    rows = []
    for way in WAYS:
        ratios = [ours / plain for ours, plain in zip(taken[way], taken["plain"], strict=True)]
        figures = [round(each, 4) for each in (statistics.median(ratios), min(ratios), max(ratios))]
        plain = round(1e3 * statistics.median(taken["plain"]), 3)
        shown = setting.model, setting.batch, recipe, way
        rows.append(Row(*shown, plain, *figures, troubles[way]))
    return rows


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["resnet50", "vit_small_patch16_224"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--skipped", type=int, default=17)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    device = torch.device(given.device)
    rows: list[Row] = []
    for model in given.models:
        setting = gpu_steps.Setting(model, given.batch, given.pixels, device, "eager", ())
        for recipe in given.recipes:
            found = measure(
                setting, recipe, rounds=given.rounds, steps=given.steps, skipped=given.skipped
            )
            for each in found:
                print(f"{model}, {recipe}, {each.way}: {each.ratio} ({each.low} to {each.high})")
            rows += found
    quiet_machine.keep(
        given.out,
        {
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
            "torch": torch.__version__,
            "rounds": given.rounds,
            "rows": [asdict(row) for row in rows],
        },
    )


if __name__ == "__main__":
    main()
