"""Keeps several processes at the same batch of an epoch; each has its own part of every batch.

Before each batch, every process sends its state to the others: the number of its images, the end of
its epoch, an error, or a signal that it received. So all processes stop at the same batch, and none
waits for a process that has already stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from halfstep.train.processes.processes import FailedElsewhere, exit_code

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.train.processes.processes import Processes
    from halfstep.train.task.task import Split

_BATCH, _END, _ASKED, _ERROR = range(4)


class Asked(Exception):  # noqa: N818  (control flow between loader and loop)
    """The process received a signal; raised between two batches."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Portion(NamedTuple):
    """The part of a batch that one process has.

    Attributes:
        images: Shape (N, channels, height, width); N may be 0 in validation. Or other inputs.
        labels: int64, shape (N,). Or other targets.
        counted: Number of these images that belong to the batch: N, or 0 for a dummy batch, which a
            process gets if the batch has no images for it.
        total: Number of images that belong to the batch, over all processes.
    """

    images: Any
    labels: Any
    counted: int
    total: int

    @property
    def batch(self) -> tuple[Any, Any]:
        """The images and the labels."""
        return self.images, self.labels


def in_step(
    processes: Processes, batches: Split, epoch: int = 1, start: int = 0
) -> Iterator[Portion]:
    """Iterate over this process's portions of the batches of one epoch.

    In validation, a process that has fewer batches than others yields empty portions at the end.
    Every process must iterate to the end or until an exception, because the processes communicate
    before each batch. See `Batches.epoch` for `epoch` and `start`.

    Raises:
        Asked: On all processes, if any process received a signal.
        FailedElsewhere: If another process has an error.
    """
    items = batches.epoch(epoch, start)
    if processes.size == 1:
        for images, labels in items:
            count = batches.size(labels)
            yield Portion(images, labels, count, count)
        return
    number = start
    while True:
        batch, state, detail, error = _next(items, batches, number)
        told = processes.numbers([state, detail])
        _raise_what_was_said(processes, told, error)
        if all(state == _END for state, _ in told):
            return
        total = sum(count for state, count in told if state == _BATCH)
        number += 1
        images, labels = batch or (torch.empty(0), torch.empty(0, dtype=torch.int64))
        yield Portion(images, labels, counted=detail, total=total)


def _next(
    items: Iterator[tuple[Any, Any]], batches: Split, number: int
) -> tuple[tuple[Any, Any] | None, int, int, Exception | None]:
    """Load this process's next batch.

    Returns:
        The batch or None; the state, such as `_BATCH`; a detail of the state: the number of images
        that count, the number of the signal, or the exit code of the error; the error or None.
    """
    try:
        batch = next(items)
    except StopIteration:
        return None, _END, 0, None
    except Asked as asked:
        return None, _ASKED, asked.number, None
    except Exception as error:  # noqa: BLE001  (raised again once the others know)
        return None, _ERROR, exit_code(error), error
    return batch, _BATCH, 0 if batches.idle(number) else batches.size(batch[1]), None


def _raise_what_was_said(
    processes: Processes, told: list[list[int]], error: Exception | None
) -> None:
    failed = [rank for rank, (state, _) in enumerate(told) if state == _ERROR]
    if error is not None and failed[0] == processes.rank:
        raise error
    if failed:
        raise FailedElsewhere(told[failed[0]][1])
    signals = [number for state, number in told if state == _ASKED]
    if signals:
        raise Asked(max(signals))
