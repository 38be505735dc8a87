"""Items `graph` and `graph-large`: captured steps beside eager ones and PyTorch's loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gpu_items.steps import Task, by_engine, by_torch, images, inspection
from gpu_items.turns import COMPILES, Variant, alternate, free
from halfstep import EMA, Engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

    from gpu_items import At
    from gpu_items.turns import Row, Step

SETTINGS: dict[str, dict[str, Any]] = {"bf16-sr": {"nonfinite": "apply"}}
"""What an engine needs so that its steps can be captured, by recipe."""
MORE: dict[str, Any] = {"clip_norm": 1.0, "average": EMA(0.999)}


def rows(at: At, size: str) -> Iterator[Row]:
    """Yield the figures of each recipe, eager and captured, and whether the weights agree."""
    if size == "small":
        task = images("resnet18", 32, 64, at)
        for recipe, more in (
            ("fp16", {}),
            ("fp16", MORE),
            ("bf16", {}),
            ("o2", {}),
            ("bf16-sr", {}),
        ):
            yield from beside(task, recipe, at, more)
        yield same_weights(at)
        return
    for name, batch in (("resnet50", 256), ("vit_base_patch16_224", 128)):
        task = images(name, batch, 224, at, channels_last=name == "resnet50")
        for backend in (None, "eager" if at.toy else "inductor"):
            yield from beside(task, "fp16", at, {}, backend=backend)


def beside(
    task: Task, recipe: str, at: At, more: dict[str, Any], *, backend: str | None = None
) -> Iterator[Row]:
    """Yield the figures of the engine's eager and captured steps, and of PyTorch's loop in fp16."""
    how = (", clipping and EMA" if more else "") + (", compiled" if backend else "")
    eager = f"engine, {recipe}{how}"
    start = partial(_engine_step, task, recipe, more, backend)
    variants = [
        Variant(eager, partial(start, captured=False)),
        Variant(f"{eager}, captured", partial(start, captured=True), eager),
    ]
    if recipe == "fp16" and not more:
        of_torch = partial(by_torch, task, recipe, backend=backend)
        variants.append(Variant(f"PyTorch, {recipe}{how}", lambda _: of_torch(), eager))
    settings = {"to_start": COMPILES} if backend else {"inspect": inspection(at)}
    for row in alternate(variants, at, **settings):
        yield {"of": task.of, **row}


def _engine_step(
    task: Task,
    recipe: str,
    more: dict[str, Any],
    backend: str | None,
    opened: ExitStack,
    *,
    captured: bool,
) -> Step:
    if not (captured or more or recipe in SETTINGS):
        return by_engine(task, recipe, opened, backend=backend)
    settings = SETTINGS.get(recipe, {}) | more
    engine = opened.enter_context(Engine(*task.make(), recipe=recipe, **settings))
    if backend is not None:
        engine.model.compile(backend=backend)
    if captured:
        return engine.capture(lambda: task.loss(engine.model))

    def step() -> None:
        with engine.autocast():
            loss = task.loss(engine.model)
        engine.backward(loss)
        engine.step()

    return step


def same_weights(at: At) -> Row:
    """Train twice, with overflows, windows of two and smaller batches; compare the weights."""
    steps, size = (12, 4) if at.toy else (200, 32)
    found = []
    for captured in (False, True):
        recipe = {"base": "fp16", "loss_scale": {"init": 2.0**12, "growth_interval": 20}}
        engine = Engine(*images("resnet18", size, 64, at).make(), recipe=recipe, accumulate=2)
        loss_of = partial(_loss, engine.model)
        step = engine.capture(loss_of)
        source = torch.Generator().manual_seed(0)
        for number in range(2 * steps):
            count = size if number % 50 != 49 else size // 2
            pixels = torch.randn(count, 3, 64, 64, generator=source)
            labels = torch.randint(10, (count,), generator=source)
            if number % 30 == 15:
                pixels[0, 0, 0, 0] = torch.inf
            batch = pixels.to(at.device), labels.to(at.device)
            if captured:
                step(*batch, samples=count)
            else:
                with engine.autocast():
                    loss = loss_of(*batch)
                engine.backward(loss, samples=count)
                engine.step()
        found.append([value.cpu() for value in engine.model.state_dict().values()])
        replays, skipped = step.replays, engine.skipped
        engine.close()
        del engine, step, loss_of
        free()
    same = all(map(torch.equal, *found))
    return {
        "of": f"weights after {steps} steps with overflows and smaller batches",
        "variant": "captured and eager", "same_bits": same, "replays": replays, "skipped": skipped,
    }  # fmt: skip


def _loss(model: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(pixels), labels)
