"""A training step by other tools, and what they cannot do on a CPU."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from collections.abc import Callable

    from steps.tasks import Task, Window


def fabric(task: Task) -> None:
    """Lightning's Fabric."""
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    setting, count = task.setting, task.setting.micro_steps
    plugins = []
    if setting.recipe == "bf16":
        plugins = [MixedPrecision("bf16-mixed", "cpu")]
    elif setting.recipe == "fp16":
        # Its GradScaler asks for CUDA unless one is given.
        plugins = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]
    fabric = Fabric(accelerator="cpu", devices=1, plugins=plugins)
    model, optimizer = fabric.setup(*task.parts())

    def step(window: Window) -> None:
        optimizer.zero_grad()
        for number, (images, labels) in enumerate(window):
            with fabric.no_backward_sync(model, enabled=number + 1 < count):
                loss = cross_entropy(model(images), labels)
                fabric.backward(loss / count if count > 1 else loss)
        if setting.clip:
            fabric.clip_gradients(model, optimizer, max_norm=setting.clip)
        optimizer.step()

    task.forever(step)


def accelerate(task: Task) -> None:
    """Hugging Face's Accelerate; it takes fp16 on a GPU only."""
    from accelerate import Accelerator

    setting = task.setting
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="no" if setting.recipe == "fp32" else setting.recipe,
        gradient_accumulation_steps=setting.micro_steps,
    )
    model, optimizer = accelerator.prepare(*task.parts())

    def step(window: Window) -> None:
        for images, labels in window:
            with accelerator.accumulate(model):
                loss = cross_entropy(model(images), labels)
                accelerator.backward(loss)
                if setting.clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), setting.clip)
                optimizer.step()
                optimizer.zero_grad()

    task.forever(step)


def mmengine(task: Task) -> None:
    """Mmengine's OptimWrapper; its mixed-precision one needs a GPU."""
    from mmengine.optim import OptimWrapper

    setting = task.setting
    model, optimizer = task.parts()
    wrapper = OptimWrapper(
        optimizer,
        accumulative_counts=setting.micro_steps,
        clip_grad={"max_norm": setting.clip} if setting.clip else None,
    )

    def step(window: Window) -> None:
        for images, labels in window:
            with wrapper.optim_context(model):
                loss = cross_entropy(model(images), labels)
            wrapper.update_params(loss)

    task.forever(step)


def lightning(task: Task) -> None:
    """Lightning's Trainer, without logger, checkpoints and progress bar."""
    import lightning as pl

    setting = task.setting
    model, optimizer = task.parts()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    class Timer(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            task.turns.begin()

        def on_train_batch_end(self, *_: Any) -> None:
            task.turns.end()

    class Batches(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return task.batches()

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=10**9,
        precision="bf16-mixed" if setting.recipe == "bf16" else "32-true",
        gradient_clip_val=setting.clip,
        callbacks=[Timer()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Batches(), batch_size=None))


PEERS: dict[str, Callable[[Task], None]] = {
    "Fabric": fabric,
    "Accelerate": accelerate,
    "mmengine": mmengine,
    "Lightning Trainer": lightning,
}
PACKAGES = {
    "Fabric": "lightning",
    "Accelerate": "accelerate",
    "mmengine": "mmengine",
    "Lightning Trainer": "lightning",
}
REFUSES = {
    "Accelerate": {"fp16", "o2"},
    "mmengine": {"bf16", "fp16", "o2"},
    "Fabric": {"o2"},
    "Lightning Trainer": {"fp16", "o2"},
}
"""Recipes that a tool does not have on a CPU."""


def missing(names: list[str]) -> list[str]:
    """Return the peers that are not installed."""
    return [
        each for each in names if each in PACKAGES and not importlib.util.find_spec(PACKAGES[each])
    ]
