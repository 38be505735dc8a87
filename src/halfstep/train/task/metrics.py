"""The metrics of a validation, and the tables that a run writes of them.

classes.csv      class,images,right,recall              a line for each class
confusion.csv    counts of images: a row for each true class, a column for each predicted class
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from halfstep import step_observer
from halfstep.files import write_atomically
from halfstep.train.data.sources.csv_rows import csv_text
from halfstep.train.processes.processes import ALONE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.train.processes.processes import Processes

_TOP = 5
_AT_ONCE = 2**17
"""Logits that are kept before they are ranked: one pass over many batches takes little longer than
one over a batch."""
_MOST_CLASSES = 2000
"""With more classes there is no confusion matrix, because its size is their number squared."""


class Metrics:
    """Accumulates the metrics of a validation, on the device.

    Each process adds its own images; the properties return the metrics of the images of all
    processes. Reading a property may communicate, so all processes must read the same properties
    in the same order. torchmetrics sums its counts over the processes by itself.

    Args:
        classes: Number of classes; with more than 5, top-5 accuracy is measured.
        device: Device of the logits.
        processes: The processes that validate together.
    """

    def __init__(self, classes: int, device: torch.device, processes: Processes = ALONE) -> None:
        self._processes = processes
        # validate_args would read the values of every batch, and so wait for the device.
        settings: dict[str, Any] = {"validate_args": False, "sync_on_compute": processes.size > 1}
        chosen: dict[str, Metric | MetricCollection] = {
            f"top{among}": MulticlassAccuracy(classes, top_k=among, average="micro", **settings)
            for among in (1, _TOP)
            if among < max(2, classes)
        }
        chosen["macro_f1"] = MulticlassF1Score(classes, **settings)
        self._ranks = MetricCollection(chosen, compute_groups=False).to(device)
        self._loss_sum = torch.zeros((), device=device)
        self._images = 0
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._size = 0
        self._confusion = (
            MulticlassConfusionMatrix(classes, **settings).to(device)
            if classes <= _MOST_CLASSES
            else None
        )

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Add a batch.

        Args:
            logits: Shape (N, classes), any floating-point dtype; the metrics are computed in fp32.
            labels: int64, shape (N,).
        """
        with torch.autocast(logits.device.type, enabled=False), step_observer.active.aside():
            logits = logits.float()
            self._loss_sum += functional.cross_entropy(logits, labels, reduction="sum")
        self._images += len(labels)
        self._waiting.append((logits, labels))
        self._size += logits.numel()
        if self._size > _AT_ONCE:
            self._rank()

    def _rank(self) -> None:
        """Count the hits of the batches that wait."""
        if not self._waiting:
            return
        with step_observer.active.aside():
            logits, labels = map(torch.cat, zip(*self._waiting, strict=True))
            self._ranks.update(logits, labels)
            if self._confusion is not None:
                self._confusion.update(logits.argmax(1), labels)
        self._waiting, self._size = [], 0

    def _computed(self, name: str) -> float:
        self._rank()
        with step_observer.active.aside():
            return float(self._ranks[name].compute())

    @property
    def loss(self) -> float:
        """Mean cross-entropy over the images."""
        loss_sum, images = self._processes.sums([float(self._loss_sum), self._images])
        return loss_sum / images

    @property
    def top1(self) -> float:
        """Share of the images whose class has the highest logit, 0 to 1."""
        return self._computed("top1")

    @property
    def top5(self) -> float | None:
        """Share of the images whose class is among the five highest logits, 0 to 1.

        None with five classes or fewer.
        """
        return self._computed("top5") if "top5" in self._ranks else None

    @property
    def macro_f1(self) -> float:
        """Unweighted mean over the classes of F1 (harmonic mean of precision and recall), 0 to 1.

        Only classes that occur in the labels or in the predictions count.
        """
        return self._computed("macro_f1")

    @property
    def confusion(self) -> torch.Tensor | None:
        """Confusion matrix on the CPU: counts, int64, shape (classes, classes).

        Rows are true classes, columns predicted classes. None with more than 2,000 classes.
        """
        if self._confusion is None:
            return None
        self._rank()
        with step_observer.active.aside():
            return self._confusion.compute().cpu()


def by_class(confusion: torch.Tensor, classes: Sequence[str]) -> list[tuple[str, int, int, float]]:
    """Return for each class: name, number of images, number of hits, recall (nan without images).

    Args:
        confusion: Confusion matrix of counts, shape (classes, classes).
        classes: Names of the classes.
    """
    images, right = confusion.sum(1).tolist(), confusion.diagonal().tolist()
    return [
        (name, total, hits, hits / total if total else float("nan"))
        for name, total, hits in zip(classes, images, right, strict=True)
    ]


def write_tables(folder: Path, confusion: torch.Tensor, classes: Sequence[str]) -> None:
    """Write `classes.csv` and `confusion.csv` from a confusion matrix, shape (classes, classes)."""
    table = [(*row[:3], f"{row[3]:.6f}") for row in by_class(confusion, classes)]
    write_atomically(
        folder / "classes.csv", csv_text([("class", "images", "right", "recall"), *table])
    )
    counts = zip(classes, confusion.tolist(), strict=True)
    rows = [("true \\ predicted", *classes), *((name, *row) for name, row in counts)]
    write_atomically(folder / "confusion.csv", csv_text(rows))
