"""Profiles one training step by kind of work: fp32, fp16 and o2 on a CPU.

The engine takes steps of a ResNet-18 at 32 px on one thread; the recipes take turns.
`torch.profiler` measures the time of each operator without the operators that it calls. The time
between operators is spent in Python, autograd and the dispatcher. The step of each recipe is also
timed without the profiler, which shows the profiler's overhead.

The results also contain the predictions of `halfstep advise` for the same step on a GPU, and for a
larger step.

    python benchmarks/step_profile.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import docs_table
import quiet_machine
import torch
from cpu_half import MODELS, SGD
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile, record_function

from halfstep import Engine
from halfstep.advise.predict.forecast import Forecaster
from halfstep.advise.predict.gpus import gpu as find_gpu
from halfstep.advise.subject import Subject
from halfstep.kernels import weight_gradients
from halfstep.kernels.native import fused, half
from halfstep.kernels.native.memory import freed_memory_kept
from halfstep.recipe import recipe as find_recipe
from halfstep.train.environment import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.autograd.profiler_util import FunctionEvent

RESULTS = Path(__file__).parent / "results" / "step_profile.json"
RECIPES = ("fp32", "fp16", "o2")
MODEL = MODELS["resnet18, 32 px"]
GPU = "h100"
LARGER = 256, 224
"""The images in a batch and the side of an image in pixels, of the larger predicted step."""

UPDATE = "engine.step"
UNSCALE = "unscale, find inf and NaN"
RECAST = "casts of weights and gradients"
OPTIMIZER = "optimizer"
BETWEEN = "Python, autograd"
KINDS = (
    "forward: convolutions",
    "forward: casts",
    "forward: other operators",
    "backward: convolutions",
    "backward: casts",
    "backward: other operators",
    UNSCALE,
    RECAST,
    OPTIMIZER,
    BETWEEN,
)
"""The kinds of work, in the order of a step."""

PRODUCTS = {"mkldnn_convolution", "convolution_backward", "addmm", "mm"}
"""The operators of convolutions and of the linear layer, which count as one kind."""
CALLERS = {"convolution", "conv2d", "_convolution", "linear"}
"""Operators that only call other operators; under a half recipe, they include Python kernels."""
CASTS = {"copy_", "_to_copy", "to"}
PASSES_IN_C = (
    (weight_gradients, "round_to_half"),
    (half, "round_to_half"),
    (half, "widen"),
    (half, "unscale"),
    (fused.SGDOnArrays, "step"),
)
"""Functions that call C code, which the profiler does not record by default."""


def kind(event: FunctionEvent) -> str:
    """Return the kind of work of an event, without the events inside of it."""
    library, _, name = event.name.partition("::")
    if library == "halfstep":
        cast = RECAST if _stage(event) == UPDATE else f"{_stage(event)}: casts"
        return {"unscale": UNSCALE, "step": OPTIMIZER}.get(name, cast)
    if library != "aten" or name in CALLERS:
        return BETWEEN
    stage = _stage(event)
    if stage == OPTIMIZER:
        return OPTIMIZER
    if stage == UPDATE:
        return RECAST if name in CASTS else UNSCALE
    if name in PRODUCTS:
        return f"{stage}: convolutions"
    return f"{stage}: casts" if name in CASTS else f"{stage}: other operators"


def _stage(event: FunctionEvent | None) -> str:
    while event is not None:
        if event.name in ("forward", "backward", UPDATE):
            return event.name
        if event.name.startswith("Optimizer.step#"):
            return OPTIMIZER
        event = event.cpu_parent
    return UPDATE


def stepper(recipe: str) -> tuple[Engine, Callable[[], None]]:
    """Return an engine, and a function that takes a step and names its stages for the profiler."""
    net = MODEL.build()
    images, labels = MODEL.data()
    engine = Engine(net, torch.optim.SGD(net.parameters(), **SGD), recipe=recipe)

    def step() -> None:
        with record_function("forward"), engine.autocast():
            loss = cross_entropy(engine.model(images), labels)
        with record_function("backward"):
            engine.backward(loss)
        with record_function(UPDATE):
            engine.step()

    return engine, step


def profiled(recipe: str, steps: int, warmup: int = 5) -> tuple[float, dict[str, float]]:
    """Take steps of a new engine, without and with the profiler.

    Returns:
        The median milliseconds of a step without the profiler, and the mean milliseconds of each
        kind of work in a step with the profiler.
    """
    engine, step = stepper(recipe)
    with engine, freed_memory_kept():  # as the trainer does
        for _ in range(warmup):
            step()
        plain = [_milliseconds(step) for _ in range(steps)]
        with _passes_in_c_recorded(), profile(activities=[ProfilerActivity.CPU]) as found:
            for _ in range(steps):
                step()
    taken: dict[str, float] = defaultdict(float)
    for event in found.events():
        taken[kind(event)] += event.self_cpu_time_total / 1e3 / steps
    return statistics.median(plain), {each: taken[each] for each in KINDS}


@contextmanager
def _passes_in_c_recorded() -> Iterator[None]:
    with ExitStack() as patches:
        for module, name in PASSES_IN_C:
            recorded = record_function(f"halfstep::{name}")(getattr(module, name))
            patches.enter_context(patch.object(module, name, recorded))
        yield


def _milliseconds(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - began)


def measure(steps: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Let the recipes take turns; return the milliseconds of each, in all and by kind of work."""
    found: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in RECIPES}
    for _ in range(rounds):
        for name, each in found.items():
            each.append(profiled(name, steps))
    return {
        name: {
            "milliseconds": {
                which: round(of([plain for plain, _ in each]), 2)
                for which, of in (("median", statistics.median), ("low", min), ("high", max))
            },
            "profiled_milliseconds": {
                work: round(statistics.fmean(taken[work] for _, taken in each), 3) for work in KINDS
            },
        }
        for name, each in found.items()
    }


def predicted(batch: int, pixels: int) -> dict[str, dict[str, Any]]:
    """Return the predictions of advise for a step on the GPU, by recipe."""
    net = MODEL.build()
    images = torch.zeros(batch, MODEL.channels, pixels, pixels)
    subject = Subject(
        "resnet18",
        net,
        lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        [(images, torch.zeros(batch, dtype=torch.int64))],
        lambda model: torch.optim.SGD(model.parameters(), **SGD),
    )
    forecaster = Forecaster(subject, largest=False)
    return {
        name: forecaster.predict(find_recipe(name), find_gpu(GPU)).as_json() for name in RECIPES
    }


def table(result: dict[str, Any]) -> list[str]:
    """Return the table of the docs: time and share of each kind of work, then the predictions."""
    measured = result["recipes"]
    lines = [f"| work | {' | '.join(measured)} |", f"| --- |{' --- |' * len(measured)}"]
    for work in KINDS:
        cells = [_share(each["profiled_milliseconds"], work) for each in measured.values()]
        lines.append(f"| {work} | {' | '.join(cells)} |")
    whole = [
        f"{each['median']:.0f} ms ({each['low']:.0f} to {each['high']:.0f})"
        for each in (row["milliseconds"] for row in measured.values())
    ]
    lines.append(f"| whole step, without the profiler | {' | '.join(whole)} |")
    for step in result["predicted"]:
        size = f"{step['batch']} images of {step['pixels']} px"
        cells = [_prediction(step["recipes"][name]) for name in measured]
        lines.append(f"| ≈ {step['gpu']}, {size} | {' | '.join(cells)} |")
    return lines


def _share(taken: dict[str, float], work: str) -> str:
    if not taken[work]:
        return "-"
    return f"{taken[work]:.1f} ms, {taken[work] / sum(taken.values()):.0%}"


def _prediction(row: dict[str, Any]) -> str:
    low, value, high = (1e3 * row["predicted_seconds"][each] for each in ("low", "value", "high"))
    return f"≈ {value:.1f} ms [{low:.1f}, {high:.1f}], {row['predicted_bound']}"


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=6, help="of each turn, with and without")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with quiet_machine.watched() as seen:
        recipes = measure(given.steps, given.rounds)
    sizes = (MODEL.batch, MODEL.pixels), LARGER
    result = {
        "environment": describe(torch.device("cpu")),
        "model": {"name": "resnet18", "batch": MODEL.batch, "pixels": MODEL.pixels},
        "steps": given.steps,
        "rounds": given.rounds,
        "recipes": recipes,
        "predicted": [
            {
                "gpu": find_gpu(GPU).name,
                "batch": batch,
                "pixels": pixels,
                "recipes": predicted(batch, pixels),
            }
            for batch, pixels in sizes
        ],
    }
    quiet_machine.keep(RESULTS, result, seen)
    docs_table.put("performance.md", "step profile", table(result))


if __name__ == "__main__":
    main()
