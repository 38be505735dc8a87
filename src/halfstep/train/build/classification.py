"""The task of a config: the classification of images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from halfstep import step_observer
from halfstep.engine.parallel.fsdp import sharded_as
from halfstep.feed.prefetching import prefetch
from halfstep.train.build.compiling import as_compiled
from halfstep.train.processes.processes import ALONE
from halfstep.train.task import sample_sheet
from halfstep.train.task.figures import Figures, Monitor
from halfstep.train.task.in_step import in_step
from halfstep.train.task.metrics import Metrics
from halfstep.train.task.task import Task

if TYPE_CHECKING:
    from torch import nn

    from halfstep.engine import Engine
    from halfstep.train.build.loss import Loss
    from halfstep.train.data import Data
    from halfstep.train.processes.processes import Processes


@dataclass(frozen=True, slots=True)
class Classification(Task):
    """The classification of images.

    Attributes:
        data: The data set.
        loss: The training loss.
        device: Device of the model.
        processes: The processes that train together.
    """

    data: Data
    loss: Loss
    device: torch.device
    processes: Processes = ALONE

    monitor = Monitor("accuracy")
    unit = "images"
    classifies = True

    def size(self, targets: torch.Tensor) -> int:
        """Return the number of images."""
        return len(targets)

    def forward(
        self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean loss of a batch, and its logits."""
        logits = model(inputs)
        return self.loss(logits, targets), logits

    def obeying(self, train: Any, val: Any) -> Classification:
        """Return the task with other splits, which wrap its own."""
        return replace(self, data=replace(self.data, train=train, val=val))

    def validate(self, engine: Engine, compiled_for: int | None = None) -> Figures:
        """Validate the model; see `Task.validate`.

        With several processes, each one validates a part of the images, and all return the figures
        of the whole split; `samples` shows images of this process.
        """
        device, data, processes = self.device, self.data, self.processes
        # Not the wrapper (DDP), because some processes have one batch more than others. If the
        # processes share the model (FSDP2), a process without a batch runs a dummy batch instead.
        model = engine.bare_model
        is_shared = sharded_as(model) is not None
        metrics = Metrics(len(data.classes), device, processes)
        samples = None
        usual: int | None = None
        processes.take_buffers_of_first(model)
        with engine.evaluating():
            for portion in prefetch(in_step(processes, data.val), device):
                if len(portion.labels) == 0:
                    if is_shared:
                        model(torch.zeros(1, *data.image_shape, device=device))
                    continue
                images, labels = data.prepare(*portion.batch, device=device, train=False)
                if compiled_for is not None:
                    usual = max(usual or 0, len(images))
                with as_compiled(len(images), usual):
                    logits = model(images)
                metrics.add(logits, labels)
                if samples is None:
                    first = slice(sample_sheet.COUNT)
                    with step_observer.active.aside():
                        samples = sample_sheet.draw(
                            images[first],
                            labels[first],
                            logits[first].argmax(1),
                            classes=data.classes,
                            normalisation=data.normalisation,
                        )
        return Figures(
            metrics.loss, metrics.top1, metrics.top5, metrics.macro_f1, metrics.confusion, samples
        )
