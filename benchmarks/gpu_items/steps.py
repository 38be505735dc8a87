"""Training steps of a task: PyTorch's own loop beside the engine of halfstep."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from gpu_items.turns import Variant, alternate
from halfstep import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack

    from gpu_items import At
    from gpu_items.turns import Row, Step

AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The recipes that PyTorch has too, with the format of its autocast."""


@dataclass(frozen=True)
class Task:
    """What a step trains, and on what.

    Attributes:
        of: The model and its batch, in words.
        make: Creates the model and its optimizer, with the same initial weights each time.
        loss: Returns the loss of a model on the batch.
    """

    of: str
    make: Callable[[], tuple[nn.Module, torch.optim.Optimizer]]
    loss: Callable[[nn.Module], torch.Tensor]


def images(name: str, batch: int, pixels: int, at: At, *, channels_last: bool = False) -> Task:
    """Return the task of a model of timm on random images, with SGD.

    Args:
        name: The name of the model in timm.
        batch: The number of images.
        pixels: Their height and width.
        at: The device; sizes that are toys replace the others.
        channels_last: Whether the images and the weights are in the memory format NHWC.
    """
    import timm

    settings: dict[str, Any] = {}
    if at.toy:
        batch, pixels = 2, 32
        is_vit = name.startswith("vit")
        name, settings = ("test_vit", {"img_size": pixels}) if is_vit else ("test_resnet", {})
    layout = torch.channels_last if channels_last else torch.contiguous_format

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=1000, **settings)
        model = model.to(at.device).to(memory_format=layout)
        return model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)

    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(batch, 3, pixels, pixels, generator=generator)
    labels = torch.randint(0, 1000, (batch,), generator=generator).to(at.device)
    pictures = pictures.to(at.device, memory_format=layout)
    of = f"{name}, {batch} images of {pixels} px, {'NHWC' if channels_last else 'NCHW'}"
    return Task(of, make, lambda model: functional.cross_entropy(model(pictures), labels))


def by_torch(
    task: Task, recipe: str, *, clip: float | None = None, backend: str | None = None
) -> Step:
    """Return a step of PyTorch's own loop: autocast, GradScaler and the optimizer.

    Args:
        task: The task.
        recipe: A key of `AUTOCAST`; the switches of TF32 are those of the process.
        clip: The largest norm of the gradients; None for no clipping.
        backend: Of `torch.compile`; None for an eager model.
    """
    model, optimizer = task.make()
    device = next(model.parameters()).device.type
    half = AUTOCAST[recipe]
    scaler = torch.amp.GradScaler(device, enabled=recipe == "fp16")
    if backend is not None:
        model.compile(backend=backend)

    def step() -> None:
        with torch.autocast(device, half) if half else nullcontext():
            loss = task.loss(model)
        scaler.scale(loss).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def by_engine(
    task: Task,
    recipe: str | dict[str, Any],
    opened: ExitStack,
    *,
    clip: float | None = None,
    backend: str | None = None,
) -> Step:
    """Return a step of the engine, which is closed with `opened`; see `by_torch`."""
    engine = opened.enter_context(Engine(*task.make(), recipe=recipe, clip_norm=clip))
    if backend is not None:
        engine.model.compile(backend=backend)

    def step() -> None:
        with engine.autocast():
            loss = task.loss(engine.model)
        engine.backward(loss)
        engine.step()

    return step


def beside(
    task: Task,
    recipe: str,
    at: At,
    *,
    others: tuple[str, ...] = (),
    clip: float | None = None,
    inspect: Callable[[Step], Row] | None = None,
) -> Iterator[Row]:
    """Yield the figures of PyTorch's loop and of the engine under a recipe, and under others.

    Args:
        task: What the steps train.
        recipe: A recipe that PyTorch has too.
        at: The device.
        others: Further recipes of the engine; their peer is PyTorch's loop too.
        clip: The largest norm of the gradients.
        inspect: See `alternate`.
    """
    peer = f"PyTorch, {recipe}"
    variants = [Variant(peer, lambda _: by_torch(task, recipe, clip=clip))]
    variants += [
        Variant(f"engine, {each}", partial(by_engine, task, each, clip=clip), peer)
        for each in (recipe, *others)
    ]
    for row in alternate(variants, at, inspect=inspect):
        yield {"of": task.of, **row, "clip": clip}


@contextmanager
def fp32_products(*, tf32: bool) -> Iterator[None]:
    """Let fp32 products of the process be TF32 or IEEE in the block."""
    cudnn, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    try:
        torch.backends.cudnn.allow_tf32 = tf32
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = cudnn
        torch.set_float32_matmul_precision(products)


def inspection(at: At) -> Callable[[Step], Row]:
    """Return what tells how many kernels and copies a step launches, and whether it waits."""

    def inspect(step: Step) -> Row:
        return {"launches": _launches(step, at), "device_reads": _reads(step, at)}

    return inspect


def _launches(step: Step, at: At) -> int | str:
    """Return the number of kernels and copies on the device in a step, or why it is unknown."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if at.on_gpu else []
    try:
        with torch.profiler.profile(activities=kinds) as profile:
            step()
            if at.on_gpu:
                torch.cuda.synchronize()
        return sum(
            each.device_type.name == "CUDA" and not getattr(each, "is_user_annotation", False)
            for each in profile.events()
        )
    except RuntimeError as error:
        return f"unknown: {error}"


def _reads(step: Step, at: At) -> str:
    """Return what reads the device in two steps, as an error of torch; "none" if nothing does."""
    if not at.on_gpu:
        step()
        return "none"
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
        step()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"
