"""Running sums of a training interval that stay on the device until they are read.

Reading the loss of every step would make a GPU wait for each of them; here a step costs a few small
kernels, and `read` waits once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torchmetrics.classification import MulticlassAccuracy

if TYPE_CHECKING:
    from halfstep.engine import StepResult


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened since the last reading.

    Attributes:
        loss: Mean over the images.
        accuracy: Share of the images, 0 to 1.
        images_per_second: Of training alone.
        nonfinite_step: First optimizer step (1-based) with a loss that was not finite, or None.
        poisoned_step: First one of them whose update was really made, or None.
    """

    loss: float
    accuracy: float
    images_per_second: float
    nonfinite_step: int | None
    poisoned_step: int | None


class Meter:
    """Adds up losses and hits.

    Args:
        classes: Number of classes.
        device: Where logits are.
    """

    def __init__(self, classes: int, device: torch.device) -> None:
        # validate_args looks at the values of every batch, which would wait for the device.
        self._accuracy = MulticlassAccuracy(classes, average="micro", validate_args=False).to(
            device
        )
        self._device = device
        self._window_finite = torch.ones((), dtype=torch.bool, device=device)
        self._start()

    def add(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Add a micro-batch: its mean loss, logits (N, classes) and labels (N,)."""
        loss, count = loss.detach().float(), len(labels)
        self._accuracy.update(logits.detach(), labels)
        self._loss_sum += loss * count
        self._window_finite &= loss.isfinite()
        self._images += count

    def close(self, step: int, result: StepResult) -> None:
        """End optimizer step number `step`, to which the micro-batches since the last belong."""
        self._windows.append((step, self._window_finite, result))
        self._window_finite = torch.ones((), dtype=torch.bool, device=self._device)

    def read(self) -> Interval:
        """Wait for the device, return what was added up, and start anew."""
        finite = torch.stack([window for _, window, _ in self._windows]).tolist()
        bad = [each for each, is_finite in zip(self._windows, finite, strict=True) if not is_finite]
        poisoned = (step for step, _, result in bad if result.stepped)
        interval = Interval(
            loss=float(self._loss_sum) / self._images,
            accuracy=float(self._accuracy.compute()),
            images_per_second=self._images / (time.perf_counter() - self._started),
            nonfinite_step=bad[0][0] if bad else None,
            poisoned_step=next(poisoned, None),
        )
        self._start()
        return interval

    def _start(self) -> None:
        self._accuracy.reset()
        self._loss_sum = torch.zeros((), device=self._device)
        self._windows: list[tuple[int, torch.Tensor, StepResult]] = []
        self._images = 0
        self._started = time.perf_counter()
