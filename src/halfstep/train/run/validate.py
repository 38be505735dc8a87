"""Validation: metrics of the engine's model, under the recipe that it is trained with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from halfstep import step_observer
from halfstep.feed.prefetching import prefetch
from halfstep.train.build.compiling import as_compiled
from halfstep.train.run import sample_sheet
from halfstep.train.run.in_step import in_step
from halfstep.train.run.metrics import Metrics

if TYPE_CHECKING:
    from halfstep.train.build.setup import Setup


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a validation.

    Attributes:
        loss: Mean cross-entropy.
        accuracy: Share of the images whose class has the highest logit, 0 to 1.
        top5: Share of the images whose class is among the five highest logits, 0 to 1; None with
            five classes or fewer.
        macro_f1: Unweighted mean over the classes of F1 (harmonic mean of precision and recall), 0
            to 1; None if only the loss and the accuracy were recorded.
        confusion: Confusion matrix: counts, int64, shape (classes, classes); rows are true classes,
            columns predicted classes. None with more than 2,000 classes.
        samples: A picture of the first images with their true and predicted classes, uint8, shape
            (3, height, width).
    """

    loss: float
    accuracy: float
    top5: float | None = None
    macro_f1: float | None = None
    confusion: torch.Tensor | None = field(default=None, compare=False, repr=False)
    samples: torch.Tensor | None = field(default=None, compare=False, repr=False)

    def scalars(self) -> dict[str, float]:
        """Return the figures that are single numbers, by name."""
        found = {"loss": self.loss, "accuracy": self.accuracy, "top5": self.top5}
        found["macro_f1"] = self.macro_f1
        return {name: value for name, value in found.items() if value is not None}


def validate(setup: Setup) -> Figures:
    """Validate the model on the validation split.

    The forward pass runs under the recipe. The loss is computed in fp32 from the logits, so that
    computing the loss cannot overflow in a narrow format. With several processes, each one
    validates a part of the images, and all return the figures of the whole split; `samples` shows
    images of this process.
    """
    device, data, processes = setup.device, setup.data, setup.processes
    # Not the wrapper (DDP), because some processes have one batch more than others. If the
    # processes share the model (FSDP2), a process without a batch runs a dummy batch instead.
    model = setup.engine.bare_model
    metrics = Metrics(len(data.classes), device, processes)
    samples = None
    usual: int | None = None
    processes.take_buffers_of_first(model)
    with setup.engine.evaluating():
        for portion in prefetch(in_step(processes, data.val), device):
            if len(portion.labels) == 0:
                if setup.model_is_shared:
                    model(torch.zeros(1, *data.image_shape, device=device))
                continue
            images, labels = data.prepare(*portion.batch, device=device, train=False)
            if setup.compiled_for is not None:
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
