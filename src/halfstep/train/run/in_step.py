"""An epoch that several processes go through in step, each with its own part of every batch.

Before each batch they tell each other what they have: how many images, the end of the epoch, an
error, or the signal that one of them got. So they all stop at the same place, and none waits for
one that has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from halfstep.train.processes.processes import FailedElsewhere, exit_code
from halfstep.train.run.signals import Asked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.train.data.pipeline.batches import Batch, Batches
    from halfstep.train.processes.processes import Processes

_BATCH, _END, _ASKED, _ERROR = range(4)


class Portion(NamedTuple):
    """What one process has of a batch.

    Attributes:
        images: (N, channels, height, width); N may be 0 in validation.
        labels: int64 (N,).
        counted: How many of them count: N, or 0 of a dummy batch.
        total: How many count on all processes together.
    """

    images: torch.Tensor
    labels: torch.Tensor
    counted: int
    total: int

    @property
    def batch(self) -> Batch:
        """The images and the labels."""
        return self.images, self.labels


def in_step(
    processes: Processes, batches: Batches, epoch: int = 1, start: int = 0
) -> Iterator[Portion]:
    """Iterate over this process's portions of the batches of one epoch.

    A process that has fewer of them, in validation, has empty portions in the end. Each process
    must iterate to the end, or until an exception. See `Batches.epoch` for the last arguments.

    Raises:
        Asked: Everywhere, if a signal came anywhere.
        FailedElsewhere: If another process has an error.
    """
    items = batches.epoch(epoch, start)
    if processes.size == 1:
        for images, labels in items:
            count = len(labels)
            yield Portion(images, labels, count, count)
        return
    number = start
    while True:
        batch, said, detail, error = _next(items, batches, number)
        told = processes.numbers([said, detail])
        _raise_what_was_said(processes, told, error)
        if all(each == _END for each, _ in told):
            return
        total = sum(count for each, count in told if each == _BATCH)
        number += 1
        images, labels = batch or (torch.empty(0), torch.empty(0, dtype=torch.int64))
        yield Portion(images, labels, counted=detail, total=total)


def _next(
    items: Iterator[Batch], batches: Batches, number: int
) -> tuple[Batch | None, int, int, Exception | None]:
    """Return the next batch, what there is to say and its detail, and this process's error."""
    try:
        batch = next(items)
    except StopIteration:
        return None, _END, 0, None
    except Asked as asked:
        return None, _ASKED, asked.number, None
    except Exception as error:  # noqa: BLE001  (raised again once the others know)
        return None, _ERROR, exit_code(error), error
    return batch, _BATCH, 0 if batches.idle(number) else len(batch[1]), None


def _raise_what_was_said(
    processes: Processes, told: list[list[int]], error: Exception | None
) -> None:
    failed = [rank for rank, (said, _) in enumerate(told) if said == _ERROR]
    if error is not None and failed[0] == processes.rank:
        raise error
    if failed:
        raise FailedElsewhere(told[failed[0]][1])
    signals = [number for said, number in told if said == _ASKED]
    if signals:
        raise Asked(max(signals))
