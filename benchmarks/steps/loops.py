"""A training step by PyTorch's own loop, by halfstep's engine and by its trainer."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import halfstep
from halfstep import Engine, Observer
from steps.tasks import SGD

if TYPE_CHECKING:
    from collections.abc import Callable

    from steps.tasks import Task, Window

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def raw(task: Task, *, checks: bool = False) -> None:
    """The loop of PyTorch's documentation.

    Args:
        task: What is trained.
        checks: Skip the update if a gradient is inf or NaN, as the Engine does by default.
    """
    model, optimizer = task.parts()
    setting, count = task.setting, task.setting.micro_steps
    if setting.recipe == "o2":
        return task.forever(_raw_o2(model))
    dtype = HALVES.get(setting.recipe)
    scaler = torch.amp.GradScaler("cpu") if setting.recipe == "fp16" else None

    def step(window: Window) -> None:
        optimizer.zero_grad()
        for images, labels in window:
            with torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext():
                loss = cross_entropy(model(images), labels)
            loss = loss / count if count > 1 else loss
            (scaler.scale(loss) if scaler else loss).backward()
        if setting.clip:
            if scaler:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), setting.clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        elif not checks or _are_finite(model):
            optimizer.step()

    return task.forever(step)


def checked(task: Task) -> None:
    """The raw loop with a check for inf and NaN before the update."""
    raw(task, checks=True)


def _are_finite(model: nn.Module) -> bool:
    grads = [param.grad for param in model.parameters() if param.grad is not None]
    return bool(torch.nn.utils.get_total_norm(grads).isfinite())


def _raw_o2(model: nn.Module) -> Callable[[Window], None]:
    """fp16 parameters, fp32 masters and a loss scale, by hand; the MLP has no norm layers."""
    masters = [param.detach().clone().requires_grad_() for param in model.parameters()]
    model.half()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(masters, **SGD)
    scaler = torch.amp.GradScaler("cpu")

    def step(window: Window) -> None:
        [(images, labels)] = window
        loss = cross_entropy(model(images.half()).float(), labels)
        scaler.scale(loss).backward()
        for master, param in zip(masters, params, strict=True):
            master.grad = param.grad.float()
            param.grad = None
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            torch._foreach_copy_(params, masters)  # what Apex does with its own kernel

    return step


def engine(task: Task, nonfinite: str = "skip") -> None:
    """Halfstep's Engine."""
    model, optimizer = task.parts()
    setting = task.setting
    engine = Engine(
        model,
        optimizer,
        recipe=setting.recipe,
        accumulate=setting.micro_steps,
        clip_norm=setting.clip,
        nonfinite=nonfinite,
    )

    def step(window: Window) -> None:
        for images, labels in window:
            with engine.autocast():
                loss = cross_entropy(engine.model(images), labels)
            engine.backward(loss)
            engine.step()

    task.forever(step)


def unchecked(task: Task) -> None:
    """The Engine without its check for inf and NaN, which the raw loop does not have either."""
    engine(task, nonfinite="apply")


class Timed(Observer):
    """Marks the steps of halfstep's trainer."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def batch_prepared(self) -> None:
        """A batch is there; a step begins."""
        self._task.turns.begin()

    def step_done(self, result: Any) -> None:
        """A step ends."""
        del result
        self._task.turns.end()


def trainer(task: Task) -> None:
    """`halfstep.train` as it comes: progress, logs, meters, doctor's watch."""
    model, setting = task.model, task.setting
    name = f"timm:{model.name}" if model.name else "import:steps.tasks:mlp"
    config = {
        "epochs": 10**6,
        "val_every": 10**6,
        "batch_size": model.batch,
        "clip_norm": setting.clip,
        "recipe": setting.recipe,
        "device": "cpu",
        "data": {"name": "digits", "resolution": model.pixels},
        "model": {"name": name, "args": model.args},
        "optimizer": {"name": "sgd", **SGD},
        "schedule": {"name": "constant"},
    }
    with tempfile.TemporaryDirectory() as folder:
        halfstep.train(config, out=Path(folder) / "run", observers=[Timed(task)])
