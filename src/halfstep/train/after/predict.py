"""Classifies images with the models of runs, and writes CSV in the format of competitions.

image,label                                                   by default
image,label,probability_cat,probability_dog                   each class (`probabilities`)
image,label,probability,label_2,probability_2                 the most probable classes (`top`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from halfstep import caller
from halfstep.errors import UserError
from halfstep.train.after import image_files
from halfstep.train.after.run_config import columns_of
from halfstep.train.after.trained import open_run
from halfstep.train.data.sources.csv_rows import csv_text
from halfstep.train.environment import pick_device

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.train.after.trained import Trained
    from halfstep.train.config.data import ColumnsConfig
    from halfstep.train.store.checkpoint import Which


@dataclass(frozen=True, slots=True)
class Predictions:
    """The classes of images, as predicted by one or several models.

    Attributes:
        labels: Name of each image and of its class, in the order of the request.
        probabilities: For each of these images, the probability of each class.
        classes: Names of the classes, in the order of the probabilities.
        unreadable: A line for each image that could not be read.
    """

    labels: list[tuple[str, str]]
    probabilities: list[list[float]]
    classes: tuple[str, ...]
    unreadable: list[str]

    def csv(self, *, probabilities: bool = False, top: int | None = None) -> str:
        """Return the predictions as CSV: a header image,label and a line for each image.

        Args:
            probabilities: Whether to add a column probability_CLASS for each class.
            top: Number of classes in each line, the most probable first, each with its probability:
                image,label,probability,label_2,probability_2 and so on.
        """
        if top is not None:
            extra = ["probability"]
            for place in range(2, top + 1):
                extra += [f"label_{place}", f"probability_{place}"]
            rest = [self._most_probable(row, top) for row in self.probabilities]
        elif probabilities:
            extra = [f"probability_{name}" for name in self.classes]
            rest = [[_number(value) for value in row] for row in self.probabilities]
        else:
            extra, rest = [], [[] for _ in self.labels]
        rows = [(*label, *more) for label, more in zip(self.labels, rest, strict=True)]
        return csv_text([("image", "label", *extra), *rows])

    def _most_probable(self, probabilities: list[float], top: int) -> list[str]:
        """Return the probability of the label, then each other class with its probability."""
        # The sort is stable: of equal probabilities the first class is first, as with argmax.
        order = sorted(range(len(probabilities)), key=lambda index: -probabilities[index])[:top]
        pairs = [
            text for index in order for text in (self.classes[index], _number(probabilities[index]))
        ]
        return pairs[1:]


def predict(
    runs: Sequence[Path],
    inputs: Sequence[Path],
    *,
    which: Which = "best",
    device: str | None = None,
    root: Path | None = None,
    top: int | None = None,
    columns: ColumnsConfig | None = None,
    flip: bool = False,
) -> Predictions:
    """Classify images, folders of images and images in CSV files, under the recipe of each run.

    Probabilities are averaged over the runs and, with `flip`, over each image and its mirror image.
    Paths in CSV files start from `root`, by default each file's own folder. `columns` are by
    default the column names in the config of the first run.

    Raises:
        UserError: If a run or its checkpoint cannot be read, if an input does not exist, if a run
            has other classes than the first run, or if there are fewer than `top` classes.
    """
    listed = image_files.find(inputs, root, columns_of(runs[0], columns))
    classes: tuple[str, ...] = ()
    total: torch.Tensor | None = None
    for run in runs:
        trained = open_run(run, which, device)
        classes = classes or trained.classes
        if trained.classes != classes:
            raise UserError(
                f"{str(run)!r} has other classes than {str(runs[0])!r}, so their probabilities "
                "cannot be averaged; write runs of the same classes"
            )
        if top is not None and top > len(classes):
            raise UserError(
                f"{caller.name('top_k')} is {top}, but the run has {len(classes)} classes; write "
                f"{caller.setting(top_k=len(classes))} or less"
            )
        names, probabilities, unreadable = _classified(trained, listed, flip=flip)
        total = probabilities if total is None else total + probabilities
    assert total is not None
    mean = total / len(runs)
    labels = [classes[index] for index in mean.argmax(1).tolist()]
    return Predictions(list(zip(names, labels, strict=True)), mean.tolist(), classes, unreadable)


def _classified(
    trained: Trained, listed: Sequence[image_files.Listed], *, flip: bool
) -> tuple[list[str], torch.Tensor, list[str]]:
    """Return the names of readable images, their probabilities, and lines for the other images.

    Probabilities are fp64 of shape (images, classes), so that close values keep their order.
    """
    names: list[str] = []
    unreadable: list[str] = []
    parts = [torch.empty(0, len(trained.classes), dtype=torch.float64)]
    with trained.classifier(pick_device(trained.config.device)) as classify:
        for batch in image_files.batches(trained, listed):
            unreadable += batch.faults
            if batch.listed:
                names += [image.name for image in batch.listed]
                views = [batch.images, batch.images.flip(-1)] if flip else [batch.images]
                chances = [classify(view).cpu().double().softmax(1) for view in views]
                parts.append(torch.stack(chances).mean(0))
    return names, torch.cat(parts), unreadable


def _number(probability: float) -> str:
    return f"{probability:.6f}"
