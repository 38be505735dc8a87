"""The loops of the cookbook with the engine, each beside the same loop of PyTorch's own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from gpu_items.turns import Variant, alternate
from torch import nn
from torch.nn import functional

from halfstep import Engine

if TYPE_CHECKING:
    from contextlib import ExitStack

    from gpu_items import At
    from gpu_items.turns import Row, Step

CLIP, WINDOW, PENALTY = 1.0, 4, 10.0


def beside(loop: str, at: At) -> list[Row]:
    """Return the milliseconds of a step of both loops, fp16, on a small ResNet.

    Args:
        loop: "plain", "clipped", "accumulated" (four micro-steps) or "gradient penalty".
        at: The device, and whether the sizes are toys.
    """
    peer = f"PyTorch, {loop}"
    return alternate(
        [
            Variant(peer, lambda _: _by_torch(loop, at)),
            Variant(f"engine, {loop}", partial(_by_engine, loop, at), peer),
        ],
        at,
    )


Task = tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]


def _task(at: At) -> Task:
    """Return a model, its optimizer, images and labels."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model("test_resnet" if at.toy else "resnet18", num_classes=10)
    model = model.to(at.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=at.on_gpu)
    size = (2, 3, 32, 32) if at.toy else (64, 3, 64, 64)
    images = torch.randn(size, device=at.device)
    labels = torch.randint(10, size[:1], device=at.device)
    return model, optimizer, images, labels


def _by_torch(loop: str, at: At) -> Step:
    model, optimizer, images, labels = _task(at)
    device = at.device
    scaler = torch.amp.GradScaler(device)

    def micro_step(divided: int) -> None:
        given = images.clone().requires_grad_(loop == "gradient penalty")
        with torch.autocast(device, torch.float16):
            loss = functional.cross_entropy(model(given).float(), labels) / divided
        if loop == "gradient penalty":
            (scaled,) = torch.autograd.grad(scaler.scale(loss), given, create_graph=True)
            loss = loss + PENALTY * (scaled / scaler.get_scale()).square().sum()
        scaler.scale(loss).backward()

    def step() -> None:
        window = WINDOW if loop == "accumulated" else 1
        for _ in range(window):
            micro_step(window)
        if loop == "clipped":
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def _by_engine(loop: str, at: At, opened: ExitStack) -> Step:
    model, optimizer, images, labels = _task(at)
    window = WINDOW if loop == "accumulated" else 1
    clip = CLIP if loop == "clipped" else None
    engine = Engine(model, optimizer, recipe="fp16", accumulate=window, clip_norm=clip)
    opened.enter_context(engine)

    def step() -> None:
        for _ in range(window):
            given = images.clone().requires_grad_(loop == "gradient penalty")
            with engine.autocast():
                loss = functional.cross_entropy(engine.model(given).float(), labels)
            if loop == "gradient penalty":
                with engine.autocast():
                    (gradient,) = engine.grad(loss, given, create_graph=True)
                    loss = loss + PENALTY * gradient.square().sum()
            engine.backward(loss)
            engine.step()

    return step
