"""Compares training steps on a GPU: the engine, PyTorch's own loop, and the prediction of advise.

    python benchmarks/gpu_steps.py --out gpu_steps.json

For each model and recipe, the script measures the milliseconds of a step and its peak memory, with
PyTorch's own loop (if `torch.amp` has such a recipe), with the engine, and for `--compiled` recipes
with the engine and a compiled model. These ways take turns of a few steps, timed by CUDA events. A
ratio is relative to PyTorch's loop in the same round, or to the engine in fp32 if PyTorch has no
such recipe. TF32 is a setting of the whole process, so the recipe tf32 is measured after the
others. The results also contain the prediction of `halfstep advise` for the step, if advise
knows the GPU (`--gpu` names another, or "none"). `--predict FILE` adds the predictions to a result,
on any machine, and measures nothing.

On a CPU (`--device cpu`), the steps are timed by the clock, and peak memory is not measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docs_table
import quiet_machine
import timm
import torch
from torch.nn import functional

from halfstep import Engine
from halfstep.advise.predict.forecast import Forecaster
from halfstep.advise.predict.gpus import gpu as find_gpu
from halfstep.advise.predict.memory import CONTEXT, PIECES
from halfstep.advise.subject import Subject
from halfstep.errors import UserError, reason
from halfstep.files import json_text, write_atomically
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).resolve().parent / "results" / "gpu" / "steps.json"
PAGE = "advise-gpus-validation.md"
RECIPES = ("fp32", "tf32", "bf16", "fp16", "o2", "bf16-sr", "fp16+act2")
OWN = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The recipes that PyTorch also has, with the format of its autocast."""
WARM_UP = 3
_HOST = torch.device("cpu")


@dataclass(frozen=True)
class Setting:
    """A model, its batch and its device."""

    model: str
    batch: int
    pixels: int
    device: torch.device
    backend: str
    compiled: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """The measured figures of a step in one way, with the prediction."""

    model: str
    batch: int
    pixels: int
    recipe: str
    way: str
    milliseconds: float
    ratio: float
    low: float
    high: float
    peak_bytes: int | None
    predicted: dict[str, Any] | None = None


def made(setting: Setting) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a model and its optimizer, with the same initial weights each time."""
    torch.manual_seed(0)
    model = timm.create_model(setting.model, num_classes=1000).to(setting.device)
    fused = setting.device.type == "cuda"
    return model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=fused)


def batch_of(setting: Setting) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images and labels, the same each time."""
    generator = torch.Generator().manual_seed(0)
    shape = setting.batch, 3, setting.pixels, setting.pixels
    images = torch.randn(shape, generator=generator)
    labels = torch.randint(0, 1000, (setting.batch,), generator=generator)
    return images.to(setting.device), labels.to(setting.device)


def by_torch(setting: Setting, recipe: str) -> Callable[..., None]:
    """Return a step of PyTorch's own loop."""
    model, optimizer = made(setting)
    format_ = OWN[recipe]
    scaler = torch.amp.GradScaler(setting.device.type, enabled=recipe == "fp16")

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        cast = torch.autocast(setting.device.type, format_) if format_ else nullcontext()
        with cast:
            loss = functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def by_engine(
    setting: Setting, recipe: str, engines: ExitStack, *, compiled: bool
) -> Callable[..., None]:
    """Return a step of the engine, with an eager model or one that is compiled in place."""
    engine = engines.enter_context(Engine(*made(setting), recipe=recipe))
    if compiled:
        engine.model.compile(backend=setting.backend)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with engine.autocast():
            loss = functional.cross_entropy(engine.model(images), labels)
        engine.backward(loss)
        engine.step()

    return step


def seconds(step: Callable[..., None], batch: tuple[torch.Tensor, ...], steps: int) -> float:
    """Take `steps` steps, and return the mean seconds of a step."""
    if not batch[0].is_cuda:
        began = time.perf_counter()
        for _ in range(steps):
            step(*batch)
        return (time.perf_counter() - began) / steps
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(steps):
        step(*batch)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / steps


def started(
    make: Callable[[], Callable[..., None]], batch: tuple[torch.Tensor, ...]
) -> tuple[Callable[..., None], int | None]:
    """Create a step, warm it up, and return it with its peak memory in bytes."""
    if not batch[0].is_cuda:
        step = make()
        seconds(step, batch, 1)
        return step, None
    before = torch.cuda.memory_allocated()
    step = make()
    seconds(step, batch, WARM_UP)
    torch.cuda.reset_peak_memory_stats()
    seconds(step, batch, 1)
    return step, torch.cuda.max_memory_allocated() - before


def measure(
    setting: Setting, recipes: list[str], rounds: int, steps: int, refused: dict[str, str]
) -> list[Row]:
    """Let the ways take turns; add the reason to `refused` for each way that fails."""
    batch = batch_of(setting)
    taken: dict[tuple[str, str], list[float]] = {}
    peaks: dict[tuple[str, str], int | None] = {}
    for group in (
        [each for each in recipes if each != "tf32"],
        [each for each in recipes if each == "tf32"],
    ):
        ways: dict[tuple[str, str], Callable[..., None]] = {}
        with ExitStack() as engines:
            for recipe in group:
                makes = {
                    "PyTorch": partial(by_torch, setting, recipe),
                    "engine": partial(by_engine, setting, recipe, engines, compiled=False),
                    "engine, compiled": partial(by_engine, setting, recipe, engines, compiled=True),
                }
                wanted = {"PyTorch": recipe in OWN, "engine": True}
                for way, make in makes.items():
                    if wanted.get(way, recipe in setting.compiled):
                        try:
                            ways[recipe, way], peaks[recipe, way] = started(make, batch)
                        except (ValueError, RuntimeError) as error:
                            refused[f"{setting.model}, {recipe}, {way}"] = reason(error)
            for _ in range(rounds):
                for each, step in ways.items():
                    taken.setdefault(each, []).append(seconds(step, batch, steps))
    rows = []
    for (recipe, way), found in taken.items():
        peer = (recipe, "PyTorch") if (recipe, "PyTorch") in taken else ("fp32", "engine")
        ratios = [ours / theirs for ours, theirs in zip(found, taken[peer], strict=True)]
        figures = [round(each, 4) for each in (statistics.median(ratios), min(ratios), max(ratios))]
        shown = setting.model, setting.batch, setting.pixels, recipe, way
        rows.append(
            Row(
                *shown,
                round(1e3 * statistics.median(found), 3),
                *figures,
                peaks[recipe, way],
            )
        )
    return rows


def predicted(
    setting: Setting, recipes: list[str], name: str, refused: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Return the prediction of advise for the step on a GPU, by recipe."""
    model, _ = made(replace(setting, device=torch.device("cpu")))
    shape = setting.batch, 3, setting.pixels, setting.pixels
    subject = Subject(
        setting.model,
        model,
        lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        [(torch.zeros(shape), torch.zeros(setting.batch, dtype=torch.int64))],
        lambda model: torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
    )
    forecaster = Forecaster(subject, largest=False)
    found = {}
    for each in recipes:
        try:
            found[each] = forecaster.predict(find_recipe(each), find_gpu(name)).as_json()
        except UserError as error:
            refused[f"{setting.model}, {each}, prediction"] = reason(error)
    return found


def known(name: str) -> str | None:
    """Return the name in advise of a GPU whose driver reports `name` ("NVIDIA H200"), or None."""
    for word in name.replace("-", " ").split():
        try:
            return find_gpu(word).key
        except UserError:
            continue
    return None


def add_predictions(path: Path, gpu: str | None) -> None:
    """Add the predictions of advise to the rows of a result; `gpu` is by default its device."""
    document = json.loads(path.read_text())
    document["predicted for"] = gpu = gpu or known(document["device"])
    if gpu is None:
        raise SystemExit(f"{path}: advise does not know {document['device']}; write --gpu NAME")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in document["rows"]:
        key = f"{row['model']}, {row['batch']}, {row['pixels']}"
        if key not in found:
            setting = Setting(row["model"], row["batch"], row["pixels"], _HOST, "eager", ())
            alike = (each for each in document["rows"] if each["model"] == row["model"])
            recipes = list(dict.fromkeys(each["recipe"] for each in alike))
            found[key] = predicted(setting, recipes, gpu, document["refused"])
        row["predicted"] = found[key].get(row["recipe"])
    write_atomically(path, json_text(document, indent=2) + "\n")
    if path.resolve() == RESULTS:
        docs_table.put(PAGE, "h100", table(document))


def table(document: dict[str, Any]) -> list[str]:
    """Return the engine's rows of a result with predictions, as a table for the docs."""
    names = "model", "recipe", "step", "predicted step", "relative to PyTorch's loop"
    names += "tensors at the peak", "error of predicted bytes"
    lines = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    for row in document["rows"]:
        if row["way"] != "engine":
            continue
        value, low, high = (
            f"{1e3 * row['predicted']['predicted_seconds'][name]:.1f}"
            for name in ("value", "low", "high")
        )
        ratio = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        tensors = (row["predicted"]["predicted_memory_bytes"] - CONTEXT) / PIECES
        error = round(tensors / row["peak_bytes"] - 1, 3) + 0.0  # no -0.0
        lines.append(
            f"| {row['model']} | {row['recipe']} | {row['milliseconds']:.1f} ms "
            f"| {value} ms [{low}, {high}] | {ratio if row['recipe'] in OWN else '-'} "
            f"| {row['peak_bytes'] / 1e9:.2f} GB | {error:+.1%} |"
        )
    return lines


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["resnet50", "vit_small_patch16_224"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--compiled", nargs="*", default=["bf16"], help="recipes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--gpu", help="that advise predicts; by default the one that is here")
    parser.add_argument("--predict", type=Path, metavar="FILE", help="a result of this script")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.predict is not None:
        add_predictions(given.predict, given.gpu)
        return
    if given.out is None:
        parser.error("--out is missing")
    device = torch.device(given.device)
    compiled = tuple(given.compiled)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    gpu = None if given.gpu == "none" else given.gpu or known(name)
    rows: list[Row] = []
    refused: dict[str, str] = {}
    for model in given.models:
        setting = Setting(model, given.batch, given.pixels, device, given.backend, compiled)
        found = measure(setting, given.recipes, given.rounds, given.steps, refused)
        advice = predicted(setting, given.recipes, gpu, refused) if gpu else {}
        rows += [replace(row, predicted=advice.get(row.recipe)) for row in found]
    quiet_machine.keep(
        given.out,
        {
            "device": name,
            "predicted for": gpu,
            "torch": torch.__version__,
            "rounds": given.rounds,
            "refused": refused,
            "rows": [asdict(row) for row in rows],
        },
    )


if __name__ == "__main__":
    main()
