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

from halfstep.files import write_atomically
from halfstep.train.data.sources.csv_rows import csv_text
from halfstep.train.processes.processes import ALONE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.train.processes.processes import Processes

_TOP = 5
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
        with torch.autocast(logits.device.type, enabled=False):
            logits = logits.float()
            self._loss_sum += functional.cross_entropy(logits, labels, reduction="sum")
            self._ranks.update(logits, labels)
            if self._confusion is not None:
                self._confusion.update(logits.argmax(1), labels)
        self._images += len(labels)

    @property
    def loss(self) -> float:
        """Mean cross-entropy over the images."""
        loss_sum, images = self._processes.sums([float(self._loss_sum), self._images])
        return loss_sum / images

    @property
    def top1(self) -> float:
        """Share of the images whose class has the highest logit, 0 to 1."""
        return float(self._ranks["top1"].compute())

    @property
    def top5(self) -> float | None:
        """Share of the images whose class is among the five highest logits, 0 to 1.

        None with five classes or fewer.
        """
        return float(self._ranks["top5"].compute()) if "top5" in self._ranks else None

    @property
    def macro_f1(self) -> float:
        """Unweighted mean over the classes of F1 (harmonic mean of precision and recall), 0 to 1.

        Only classes that occur in the labels or in the predictions count.
        """
        return float(self._ranks["macro_f1"].compute())

    @property
    def confusion(self) -> torch.Tensor | None:
        """Confusion matrix on the CPU: counts, int64, shape (classes, classes).

        Rows are true classes, columns predicted classes. None with more than 2,000 classes.
        """
        return None if self._confusion is None else self._confusion.compute().cpu()


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
