"""Time, memory and largest batch of a training step of a named model, recipe by recipe.

The images are synthetic: no data set is read. On a GPU the steps are measured; on a CPU they are
predicted, as by `halfstep advise`, for a GPU that need not be in this machine.
"""

from __future__ import annotations

import gc
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from halfstep.bench.outcome import subject
from halfstep.bench.recipe_rows import Row, outcome, why_slow
from halfstep.engine import Engine
from halfstep.errors import UserError
from halfstep.kernels.accelerators import recorded_event
from halfstep.recipe import recipe as find_recipe
from halfstep.train.build import models
from halfstep.train.config.model import ModelConfig
from halfstep.train.environment import pick_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console
    from torch import nn

    from halfstep.bench.outcome import Outcome
    from halfstep.recipe import Recipe

DEFAULT = ("tf32", "bf16", "fp16", "half-bn32", "bf16-sr", "fp16+act4", "fp16+act2")
CLASSES = 1000
WARM, TIMED = 3, 8


def bench(
    model: str,
    *,
    batch: int,
    size: int,
    recipes: str | None,
    device_name: str,
    gpu: str,
    console: Console,
) -> Outcome:
    """Measure or predict a step under each recipe.

    Args:
        model: The name of a classifier of timm or torchvision.
        batch: Images of a step.
        size: Height and width of an image.
        recipes: Names, separated by commas; None for `DEFAULT`.
        device_name: "auto", or the name of a device.
        gpu: The GPU to predict for if the device is a CPU.
        console: Prints the progress.

    Raises:
        UserError: If there is no such model, recipe or GPU, or if no recipe fits.
    """
    device = pick_device(device_name)
    try:
        chosen = [find_recipe(name) for name in recipes.split(",")] if recipes else None
    except ValueError as error:
        raise UserError(f"--recipes is {recipes!r}: {error}") from error
    chosen = chosen or [find_recipe(name) for name in DEFAULT]
    made = build(model, size)
    if device.type == "cpu":
        rows, notes = _predicted(model, made, chosen, batch, size, gpu, console)
    else:
        rows, notes = _measured(made, chosen, batch, size, device, console)
    measured = device.type != "cpu"
    rows = [row.because(why_slow(row, rows, made, measured=measured)) for row in rows]
    options = [f"--batch {batch}", f"--size {size}"]
    return outcome(subject("recipes", model, options, device), rows, notes)


def build(name: str, size: int) -> nn.Module:
    """Return a classifier on the CPU in fp32, with its memory in channels-last order."""
    model = models.build(ModelConfig(name=name), classes=CLASSES, image_shape=(3, size, size))
    return model.train().to(memory_format=torch.channels_last)


def _predicted(
    name: str,
    model: nn.Module,
    recipes: Sequence[Recipe],
    batch: int,
    size: int,
    gpu: str,
    console: Console,
) -> tuple[list[Row], list[str]]:
    from halfstep.advise.predict import gpus
    from halfstep.advise.predict.forecast import Forecaster, forecasts
    from halfstep.advise.subject import Subject

    subject_ = Subject(
        name,
        model,
        lambda model, batch: cross_entropy(model(batch[0]).float(), batch[1]),
        [_images(2, size, torch.device("cpu"))],
        sgd,
    )
    chosen = gpus.gpu(gpu)
    forecaster = Forecaster(subject_, batch=batch, tell=lambda text: console.print(f"{text} ..."))
    names = [recipe.name for recipe in recipes]
    predictions = forecasts(forecaster, names, [chosen], partly=True)
    reference, *rest = predictions
    rows = []
    for forecast in [reference, *rest]:
        if forecast.lacks:
            continue
        speed = None if forecast.speed_up is None else forecast.speed_up.value
        rows.append(
            Row(
                forecast.recipe, batch, forecast.seconds.value, forecast.memory,
                forecast.largest_batch, speed, fits=forecast.fits,
            )
        )  # fmt: skip
    left = [recipe for recipe in names if recipe not in {row.recipe for row in rows}]
    remark = f"Predicted for one {chosen.name}, not measured: there is no GPU here."
    notes = [f"{remark} halfstep advise explains how far predictions are off."]
    if left:
        notes.append(f"Cannot be predicted on a CPU: {', '.join(left)}.")
    return rows, notes


def _measured(
    model: nn.Module,
    recipes: Iterable[Recipe],
    batch: int,
    size: int,
    device: torch.device,
    console: Console,
) -> tuple[list[Row], list[str]]:
    state = model.state_dict()
    rows: list[Row] = []
    for recipe in recipes:
        console.print(f"{recipe.name} ...")
        rows.append(_row(model, state, recipe, batch, size, device, rows[0] if rows else None))
    text = f"Median of {TIMED} steps after {WARM}, with SGD, channels last, on synthetic images."
    return rows, [
        text,
        "The largest batch is estimated from the memory of this batch and of half of it.",
    ]


def _row(
    model: nn.Module,
    state: dict[str, torch.Tensor],
    recipe: Recipe,
    batch: int,
    size: int,
    device: torch.device,
    first: Row | None,
) -> Row:
    peaks: dict[int, int] = {}
    seconds: list[float] = []
    try:
        for images in dict.fromkeys((max(batch // 2, 1), batch)):  # the smaller one first
            seconds, peaks[images] = steps_of(model, state, recipe, images, size, device)
    except torch.OutOfMemoryError:
        return Row(recipe.name, batch, None, None, None, None, fits=False)
    finally:
        gc.collect()
        torch.accelerator.empty_cache()
    median = statistics.median(seconds)
    speed = None if first is None or first.seconds is None else first.seconds / median
    total = torch.accelerator.get_memory_info(device)[1]
    return Row(recipe.name, batch, median, peaks[batch], largest(peaks, total), speed)


def largest(peaks: dict[int, int], total: int) -> int | None:
    """Return the largest batch that fits, from the peaks of two batches; None if there is one."""
    if len(peaks) < 2:
        return None
    (small, low), (large, high) = sorted(peaks.items())
    per_sample = (high - low) / (large - small)
    return int((total - low) / per_sample) + small if per_sample > 0 else None


def steps_of(
    model: nn.Module,
    state: dict[str, torch.Tensor],
    recipe: Recipe,
    batch: int,
    size: int,
    device: torch.device,
) -> tuple[list[float], int]:
    """Train for a few steps; return the seconds of the timed ones, and the peak of the memory."""
    torch.accelerator.reset_peak_memory_stats(device)
    model.load_state_dict(state)
    model.to(device)
    images, labels = _images(batch, size, device)
    events = []
    with Engine(model, sgd(model, fused=True), recipe=recipe) as engine:
        for step in range(WARM + TIMED):
            if step >= WARM:
                events.append(recorded_event(device, timed=True))
            with engine.autocast():
                loss = cross_entropy(engine.model(images).float(), labels)
            engine.backward(loss)
            engine.step()
        events.append(recorded_event(device, timed=True))
        torch.accelerator.synchronize(device)
        seconds = [before.elapsed_time(after) / 1000 for before, after in pairwise(events)]
    return seconds, torch.accelerator.max_memory_reserved(device)


def sgd(model: nn.Module, *, fused: bool = False) -> SGD:
    """Return the optimizer of the steps."""
    return SGD(model.parameters(), lr=0.01, momentum=0.9, fused=fused)


def _images(batch: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(CLASSES, (batch,), device=device)
    return images.to(memory_format=torch.channels_last), labels
