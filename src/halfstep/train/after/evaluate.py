"""Evaluates a checkpoint of a run, on the run's validation split or on other labelled images.

On the run's validation split, the figures should equal those that the run recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from halfstep.errors import UserError, closest
from halfstep.train.after import image_files
from halfstep.train.after.run_config import columns_of, config_of
from halfstep.train.after.trained import open_run
from halfstep.train.build.setup import set_up
from halfstep.train.config.loop import DistributedConfig
from halfstep.train.environment import pick_device
from halfstep.train.run.validate import validate
from halfstep.train.store import checkpoint
from halfstep.train.task.figures import Figures
from halfstep.train.task.metrics import Metrics, by_class

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.train.config.data import ColumnsConfig
    from halfstep.train.store.checkpoint import Which

_LOSS_TOLERANCE = 1e-5
"""Relative; the order of additions depends on the number of threads and on the processor."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measured figures of a checkpoint, and the figures that its run recorded.

    Attributes:
        measured: The figures of this evaluation.
        recorded: The figures that the run recorded in the checkpoint; None on other data.
        epoch: Number of finished epochs at the checkpoint.
        device: Device of the evaluation.
        classes: Names of the classes, for `measured.confusion`.
        unreadable: A line for each image that could not be read.
    """

    measured: Figures
    recorded: Figures | None
    epoch: int
    device: str
    classes: tuple[str, ...] = ()
    unreadable: list[str] = field(default_factory=list)

    @property
    def recall(self) -> dict[str, float]:
        """Share of each class's images that were classified correctly.

        Classes without images are left out; with very many classes it is empty.
        """
        confusion = self.measured.confusion
        rows = [] if confusion is None else by_class(confusion, self.classes)
        return {name: share for name, images, _, share in rows if images}

    @property
    def matches(self) -> bool | None:
        """Whether accuracies are equal, and losses up to rounding; None on other data."""
        if self.recorded is None:
            return None
        return self.measured.accuracy == self.recorded.accuracy and (
            math.isclose(self.measured.loss, self.recorded.loss, rel_tol=_LOSS_TOLERANCE)
            or (math.isnan(self.measured.loss) and math.isnan(self.recorded.loss))
        )


def evaluate(
    run: Path, which: Which = "best", device: str | None = None, root: Path | None = None
) -> Evaluation:
    """Evaluate a checkpoint on the validation split of its run, under the recipe of the run.

    `root` replaces data.root if the data have been moved.

    Raises:
        UserError: If there is no such run or checkpoint, or if the checkpoint is damaged.
    """
    moved = {"data.root": str(root)} if root is not None else {}
    # Evaluate in a single process, whatever the number of processes in training.
    alone = {"distributed": DistributedConfig()}
    config = config_of(run, device, moved).model_copy(update=alone)
    stored = checkpoint.load(checkpoint.path(run, which))
    target = pick_device(config.device)
    setup = set_up(config, target, weights=stored.weights, trains=False)
    with setup.engine:
        measured = validate(setup)
    recorded = Figures(stored.loss, stored.accuracy)
    return Evaluation(measured, recorded, stored.epoch, str(target), tuple(stored.classes))


def evaluate_on(
    run: Path,
    data: Path,
    which: Which = "best",
    device: str | None = None,
    root: Path | None = None,
    columns: ColumnsConfig | None = None,
) -> Evaluation:
    """Evaluate a checkpoint of a run on the images of a CSV file, under the recipe of the run.

    Paths in the file start from `root`, by default the file's folder. `columns` are by default the
    column names in the run's config.

    Raises:
        UserError: If the run, its checkpoint or the file cannot be read, if the file has a label
            that the run does not know, or if no image can be read.
    """
    trained = open_run(run, which, device)
    listed = image_files.of_csv(data, root, columns_of(run, columns), labelled=True)
    _refuse_unknown(listed, trained.classes)
    target = pick_device(trained.config.device)
    numbers = {name: number for number, name in enumerate(trained.classes)}
    metrics = Metrics(len(trained.classes), target)
    unreadable: list[str] = []
    with trained.classifier(target) as classify:
        for batch in image_files.batches(trained, listed):
            unreadable += batch.faults
            if batch.listed:
                labels = torch.tensor([numbers[image.label] for image in batch.listed])
                metrics.add(classify(batch.images), labels.to(target))
    if len(unreadable) == len(listed):
        first = f"; the first: {unreadable[0]}" if unreadable else ""
        raise UserError(f"{data} lists no image that can be read{first}")
    measured = Figures(
        metrics.loss, metrics.top1, metrics.top5, metrics.macro_f1, metrics.confusion
    )
    return Evaluation(
        measured, None, trained.stored.epoch, str(target), trained.classes, unreadable
    )


def _refuse_unknown(listed: Sequence[image_files.Listed], classes: Sequence[str]) -> None:
    known = frozenset(classes)
    for image in listed:
        if image.label not in known:
            raise UserError(
                f"{image.where}: the run knows no class {image.label!r}; allowed: one of its "
                f"{len(classes)}{closest(image.label, classes)}"
            )
