"""Evaluates a run's checkpoint: on its own validation split, or on other images with labels.

On its own split it must still give what the run recorded.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from halfstep.errors import UserError, closest
from halfstep.train.after import image_files
from halfstep.train.after.trained import columns_of, config_of, open_run
from halfstep.train.build.setup import set_up
from halfstep.train.config.loop import DistributedConfig
from halfstep.train.environment import pick_device
from halfstep.train.run.metrics import Metrics, by_class
from halfstep.train.run.validate import Figures, validate
from halfstep.train.store import checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.train.config.data import ColumnsConfig
    from halfstep.train.store.checkpoint import Which

_LOSS_TOLERANCE = 1e-5
"""Relative; another number of threads or another processor adds up in another order."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a checkpoint gives now, beside what its run recorded.

    Attributes:
        measured: The figures now.
        recorded: Those that the run wrote when it made the checkpoint; None on other data.
        epoch: The epoch that the checkpoint was made after.
        device: Where it was evaluated.
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
        """Of each class that has images the share that was right; empty with very many classes."""
        confusion = self.measured.confusion
        rows = [] if confusion is None else by_class(confusion, self.classes)
        return {name: share for name, images, _, share in rows if images}

    @property
    def matches(self) -> bool | None:
        """Whether the accuracies are equal, and the losses to rounding; None on other data."""
        if self.recorded is None:
            return None
        return self.measured.accuracy == self.recorded.accuracy and (
            math.isclose(self.measured.loss, self.recorded.loss, rel_tol=_LOSS_TOLERANCE)
            or (math.isnan(self.measured.loss) and math.isnan(self.recorded.loss))
        )


def evaluate(
    run: Path, which: Which = "best", device: str | None = None, root: Path | None = None
) -> Evaluation:
    """Run the validation split through a checkpoint of a run, under the run's recipe.

    `root` is where the data lie now, in place of data.root.

    Raises:
        UserError: If there is no such run or checkpoint, or if it is damaged.
    """
    moved = [f"data.root={json.dumps(str(root))}"] if root is not None else []
    # In this process alone, however many trained it.
    alone = {"distributed": DistributedConfig()}
    config = config_of(run, device, moved).model_copy(update=alone)
    stored = checkpoint.load(checkpoint.path(run, which))
    target = pick_device(config.device)
    setup = set_up(config, target, weights=stored.weights)
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
    """Run the images of a CSV file through a checkpoint of a run, under the run's recipe.

    Paths in the file start from `root`, by default its own folder; its columns are by default
    called what the run's own lists call them.

    Raises:
        UserError: If the run, its checkpoint or the file cannot be had, if the file has a label
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
                labels = torch.tensor([numbers[each.label] for each in batch.listed])
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
    for each in listed:
        if each.label not in known:
            raise UserError(
                f"{each.where}: the run knows no class {each.label!r}; allowed: one of its "
                f"{len(classes)}{closest(each.label, classes)}"
            )
