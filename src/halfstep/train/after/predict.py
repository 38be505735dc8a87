"""Names the class of images with a run's model, and writes the names as competitions want them.

image,label
image,label,probability_cat,probability_dog                   each class (`probabilities`)
image,label,probability,label_2,probability_2                 the most probable ones (`top`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.train.after import image_files
from halfstep.train.after.trained import columns_of, open_run
from halfstep.train.data.sources.csv_rows import csv_text
from halfstep.train.environment import pick_device

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from halfstep.train.config.data import ColumnsConfig
    from halfstep.train.store.checkpoint import Which


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a model says.

    Attributes:
        labels: Image and name of its class, in the order asked for.
        probabilities: Of each of these images, the probability of each class.
        classes: Names of the classes, in that order.
        unreadable: A line for each image that could not be read.
    """

    labels: list[tuple[str, str]]
    probabilities: list[list[float]]
    classes: tuple[str, ...]
    unreadable: list[str]

    def csv(self, *, probabilities: bool = False, top: int | None = None) -> str:
        """Return the submission format: a header image,label and a line for each image.

        Args:
            probabilities: Whether a column for each class follows, probability_CLASS.
            top: How many classes each line has, the most probable first, with its probability each:
                image,label,probability,label_2,probability_2 and so on.
        """
        if top is not None:
            extra = ["probability"]
            for place in range(2, top + 1):
                extra += [f"label_{place}", f"probability_{place}"]
            rest = [self._most_probable(each, top) for each in self.probabilities]
        elif probabilities:
            extra = [f"probability_{name}" for name in self.classes]
            rest = [[_number(value) for value in each] for each in self.probabilities]
        else:
            extra, rest = [], [[] for _ in self.labels]
        rows = [(*label, *more) for label, more in zip(self.labels, rest, strict=True)]
        return csv_text([("image", "label", *extra), *rows])

    def _most_probable(self, probabilities: list[float], top: int) -> list[str]:
        """Return the probability of the label, then the other classes with theirs."""
        # The sort is stable: of equal ones the first class is first, as argmax has it.
        order = sorted(range(len(probabilities)), key=lambda each: -probabilities[each])[:top]
        pairs = [
            text for each in order for text in (self.classes[each], _number(probabilities[each]))
        ]
        return pairs[1:]


def predict(
    run: Path,
    inputs: Sequence[Path],
    *,
    which: Which = "best",
    device: str | None = None,
    root: Path | None = None,
    top: int | None = None,
    columns: ColumnsConfig | None = None,
) -> Predictions:
    """Classify images, in folders or in CSV files too, under the run's recipe.

    Paths in CSV files start from `root`, by default each file's own folder; their columns are by
    default called what the run's own lists call them. The run must have `top` classes.

    Raises:
        UserError: If the run or its checkpoint cannot be had, if an input does not exist, or if the
            run has fewer classes than `top`.
    """
    listed = image_files.find(inputs, root, columns_of(run, columns))
    trained = open_run(run, which, device)
    if top is not None and top > len(trained.classes):
        raise UserError(
            f"--top-k is {top}, but the run has {len(trained.classes)} classes; write --top-k "
            f"{len(trained.classes)} or less"
        )
    labels: list[tuple[str, str]] = []
    probabilities: list[list[float]] = []
    unreadable: list[str] = []
    with trained.classifier(pick_device(trained.config.device)) as classify:
        for batch in image_files.batches(trained, listed):
            unreadable += batch.faults
            if batch.listed:
                logits = classify(batch.images)
                named = (trained.classes[each] for each in logits.argmax(1).tolist())
                labels += zip((each.name for each in batch.listed), named, strict=True)
                probabilities += _probabilities(logits)
    return Predictions(labels, probabilities, trained.classes, unreadable)


def _probabilities(logits: torch.Tensor) -> list[list[float]]:
    """Return the softmax of logits (N, classes), in fp64 so that close ones keep their order."""
    found: list[list[float]] = logits.double().softmax(1).tolist()
    return found


def _number(probability: float) -> str:
    return f"{probability:.6f}"
