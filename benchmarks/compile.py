"""Compares compiled and eager steps on a CPU, of the engine and of PyTorch's own loop.

The engine's model is compiled as in the trainer with `model.compile: true`: in place, after the
recipe has prepared it, with a fused optimizer, and not at all if the model is too small. The
variants of a recipe take turns; ratios are relative to the eager step of the engine. For each model
and recipe, the cache of compiled kernels is empty at first. The engine fills it, and the raw loop
uses it. So the time to compile is that of the engine: the CPU time of its first step, including the
C++ compiler, minus that of a first eager step. PyTorch has no counterpart of o2.

    python benchmarks/compile.py         # or a part: --models mlp --recipes fp32 bf16

A part only replaces its own rows in the results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import tempfile
import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cpu_half
import docs_table
import in_turns
import quiet_machine
import torch
from steps.tasks import MODELS, SGD
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy

from halfstep import Engine
from halfstep.kernels.native.memory import freed_memory_kept
from halfstep.train.build.compiling import CompileWarning, pays

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    Step = Callable[[], torch.Tensor]

RESULTS = Path(__file__).parent / "results" / "compile.json"
STEPS = {"mlp": 50, "digits ResNet": 8}
"""Number of steps in a turn, by model."""
RECIPES = ("fp32", "bf16", "fp16", "o2")
EAGER, COMPILED = "engine", "engine, compiled"
LOSSES = 8
"""Number of first steps whose losses are compared with those of the eager engine."""


class Told:
    """Values that the process of a variant reports to the measuring process, in shared memory."""

    def __init__(self) -> None:
        self._losses = multiprocessing.RawArray("d", LOSSES)
        self._graphs = multiprocessing.RawValue("i", 0)
        self._steps = 0

    def heard(self, step: Step) -> Callable[[], None]:
        """Return a step that also reports its loss (the first `LOSSES` steps) and the graphs."""

        def told() -> None:
            loss = step()
            if self._steps < LOSSES:
                self._losses[self._steps] = loss.item()
                self._steps += 1
            self._graphs.value = counters["stats"]["unique_graphs"]

        return told

    @property
    def graphs(self) -> int:
        """The number of compiled graphs."""
        return int(self._graphs.value)

    def farthest(self, other: Told) -> float:
        """Return the largest relative difference to the losses of another variant."""
        pairs = zip(self._losses, other._losses, strict=True)
        return float(max(abs(mine - its) / abs(its) for mine, its in pairs))


def parts(
    model: str, *, fused: bool = False
) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    """Return a model, its optimizer, and a batch of images and labels."""
    its = MODELS[model]
    net = its.build()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn((its.batch, 1, its.pixels, its.pixels), generator=generator)
    labels = torch.randint(10, (its.batch,), generator=generator)
    return net, torch.optim.SGD(net.parameters(), fused=fused, **SGD), images, labels


def engine(model: str, recipe: str, told: Told, *, compiled: bool) -> Callable[[], None]:
    """Return a function that takes a step of an engine."""
    if compiled:
        net, _, images, _ = parts(model)
        with warnings.catch_warnings(action="ignore", category=CompileWarning):
            compiled = pays(net, len(images), tuple(images.shape[1:]))
    net, optimizer, images, labels = parts(model, fused=compiled)
    its = Engine(net, optimizer, recipe=recipe)
    cpu_half.HELD.enter_context(freed_memory_kept())  # as the trainer does
    if compiled:
        its.model.compile()

    def step() -> torch.Tensor:
        with its.autocast():
            loss = cross_entropy(its.model(images), labels)
        its.backward(loss)
        its.step()
        return loss

    return told.heard(step)


def raw(model: str, recipe: str, told: Told, *, compiled: bool) -> Callable[[], None]:
    """Return a step of PyTorch's own loop: autocast, with a `GradScaler` for fp16."""
    net, optimizer, images, labels = parts(model)
    scaler = torch.amp.GradScaler("cpu", enabled=recipe == "fp16")
    dtype = cpu_half.HALVES.get(recipe)
    if compiled:
        net.compile()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext():
            loss = cross_entropy(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return told.heard(step)


ENGINE = {EAGER: partial(engine, compiled=False), COMPILED: partial(engine, compiled=True)}
RAW = {
    "raw loop": partial(raw, compiled=False),
    "raw loop, compiled": partial(raw, compiled=True),
}
VARIANTS = ENGINE | RAW


def measured(model: str, recipe: str, rounds: int) -> list[dict[str, Any]]:
    """Measure the variants of a model and recipe."""
    able = ENGINE if recipe == "o2" else VARIANTS
    told = {name: Told() for name in able}
    starts = {name: partial(start, model, recipe, told[name]) for name, start in able.items()}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        turns = in_turns.measure(starts, EAGER, steps=STEPS[model], rounds=rounds)
    rows = []
    for name, its in turns.items():
        row = {"model": model, "recipe": recipe, "variant": name, **asdict(its)}
        row["loss_difference"] = told[name].farthest(told[EAGER])
        row["graphs"] = told[name].graphs
        if name == COMPILED:
            row["compile_seconds"] = round(its.first_seconds - turns[EAGER].first_seconds, 1)
        rows.append(row)
    return rows


def table(record: dict[str, Any]) -> list[str]:
    """Return the table of the docs: ratios to the eager step of the engine, and compile times."""
    rows = {(each["model"], each["recipe"], each["variant"]): each for each in record["rows"]}
    others = [name for name in VARIANTS if name != EAGER]
    columns = ("step", EAGER, *others, "time to compile", "break-even", "graphs", "loss difference")
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for model, recipe in dict.fromkeys((model, recipe) for model, recipe, _ in rows):
        eager, its = (rows[model, recipe, name] for name in (EAGER, COMPILED))
        ratios = " | ".join(_ratio(rows.get((model, recipe, name))) for name in others)
        lines.append(
            f"| {model}, {recipe} | {eager['milliseconds']:.2f} ms | {ratios} "
            f"| {_seconds(its)} | {_pays(eager, its)} | {its['graphs']} "
            f"| {its['loss_difference']:.1g} |"
        )
    return lines


def _ratio(row: dict[str, Any] | None) -> str:
    return f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})" if row else "-"


def _seconds(its: dict[str, Any]) -> str:
    return f"{its['compile_seconds']:.0f} s" if its["graphs"] else "-"


def _pays(eager: dict[str, Any], its: dict[str, Any]) -> str:
    """Return the number of steps after which compiling has saved its own time, rounded to 100."""
    if not its["graphs"]:
        return "-"
    saved = (1 - its["ratio"]) * eager["milliseconds"] / 1e3
    return f"{round(its['compile_seconds'] / saved, -2):,.0f} steps" if saved > 0 else "never"


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # so that one process contains all CPU time
    rows = []
    for model in given.models:
        for recipe in given.recipes:
            rows += measured(model, recipe, given.rounds)
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    fresh = {(row["model"], row["recipe"]) for row in rows}
    rows += [row for row in kept if (row["model"], row["recipe"]) not in fresh]
    models, recipes = [*STEPS], [*RECIPES]
    rows.sort(key=lambda row: (models.index(row["model"]), recipes.index(row["recipe"])))
    record = {"environment": cpu_half.environment(), "rows": rows}
    quiet_machine.keep(RESULTS, record)
    docs_table.put("performance.md", "compiled", table(record))


if __name__ == "__main__":
    main()
