"""The figures of a validation, and the one of them that decides which checkpoint is the best."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a validation.

    Attributes:
        loss: Mean loss; in image classification, the mean cross-entropy.
        accuracy: Share of the images whose class has the highest logit, 0 to 1; None if the task
            has no accuracy.
        top5: Share of the images whose class is among the five highest logits, 0 to 1; None with
            five classes or fewer.
        macro_f1: Unweighted mean over the classes of F1 (harmonic mean of precision and recall), 0
            to 1; None if only the loss and the accuracy were recorded.
        confusion: Confusion matrix: counts, int64, shape (classes, classes); rows are true classes,
            columns predicted classes. None with more than 2,000 classes.
        samples: A picture of the first images with their true and predicted classes, uint8, shape
            (3, height, width).
        metrics: The metrics of `halfstep.fit`'s caller, by name, except one named "accuracy".
    """

    loss: float
    accuracy: float | None = None
    top5: float | None = None
    macro_f1: float | None = None
    confusion: torch.Tensor | None = field(default=None, compare=False, repr=False)
    samples: torch.Tensor | None = field(default=None, compare=False, repr=False)
    metrics: Mapping[str, float] = field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """Return the figures that are single numbers, by name."""
        figures = {"loss": self.loss, "accuracy": self.accuracy, "top5": self.top5}
        figures["macro_f1"] = self.macro_f1
        known = {name: value for name, value in figures.items() if value is not None}
        return {**known, **self.metrics}


@dataclass(frozen=True, slots=True)
class Monitor:
    """The figure by which validations are compared.

    Attributes:
        name: Its name in `Figures.scalars`.
        less_is_better: Whether a smaller value is better.
    """

    name: str = "accuracy"
    less_is_better: bool = False

    def is_better(self, value: float, than: float | None) -> bool:
        """Tell whether a value is better than an earlier one; any number is better than nan."""
        if than is None or math.isnan(than):
            return than is None or not math.isnan(value)
        return value < than if self.less_is_better else value > than
