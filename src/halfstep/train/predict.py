"""Names the class of images with a run's model, and writes the names as competitions want them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.train import image_files
from halfstep.train.environment import pick_device
from halfstep.train.metrics import csv_text
from halfstep.train.trained import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.train.checkpoint import Which


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a model says.

    Attributes:
        labels: Image and name of its class, in the order asked for.
        unreadable: A line for each image that could not be read.
    """

    labels: list[tuple[str, str]]
    unreadable: list[str]

    def csv(self) -> str:
        """Return the submission format: a header image,label and a line for each image."""
        return csv_text([("image", "label"), *self.labels])


def predict(
    run: Path,
    inputs: Sequence[Path],
    *,
    which: Which = "best",
    device: str | None = None,
    root: Path | None = None,
) -> Predictions:
    """Classify images, under the run's recipe.

    Args:
        run: The run directory.
        inputs: Images, folders, or CSV files with a column image.
        which: The run's best or last checkpoint.
        device: Where; by default as the run's config says.
        root: What paths in CSV files start from; by default each file's own folder.

    Raises:
        UserError: If the run or its checkpoint cannot be had, or an input does not exist.
    """
    listed = image_files.find(inputs, root)
    trained = open_run(run, which, device)
    labels: list[tuple[str, str]] = []
    unreadable: list[str] = []
    with trained.classifier(pick_device(trained.config.device)) as classify:
        for batch in image_files.batches(trained, listed):
            unreadable += batch.faults
            if batch.listed:
                best = classify(batch.images).argmax(1).tolist()
                named = (trained.classes[each] for each in best)
                labels += zip((each.name for each in batch.listed), named, strict=True)
    return Predictions(labels, unreadable)
