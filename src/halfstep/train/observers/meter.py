"""Loss, accuracy and speed of a training interval, computed for many steps at once.

Reading the loss of every step would stall a GPU in every step, and summing losses on the GPU would
cost each step a few small kernels. So losses and logits are kept. Hits (correctly classified
images) are counted in one pass over the logits of many steps; losses are read and summed when the
interval ends.
"""

from __future__ import annotations

import math
import time
from itertools import groupby
from struct import Struct
from typing import TYPE_CHECKING, Any

import torch

from halfstep.train.processes.processes import ALONE
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.engine import StepResult
    from halfstep.train.processes.processes import Processes
    from halfstep.train.store.checkpoint import State

LARGE = 2**12
"""A micro-batch with more logits than this keeps only the predicted classes, not the logits."""
MOST = 2**17
"""Hits are counted at the end of a step once more logits than this are kept."""

_FP32 = Struct("f")
_NOTHING = (0.0, 0, 0)
MicroBatch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]
"""Mean loss, a scalar; logits (N, classes) or predicted classes, int64 (N,); labels likewise; N."""
_NONE = torch.empty(0, dtype=torch.int64)
"""Stands for logits and labels if hits are not counted."""


class Meter(Observer):
    """Sums losses and hits of an interval, at its end over all processes.

    Args:
        clock: Returns the seconds of training.
        processes: The processes that train together.
        size: Returns the number of samples of a batch, given its targets.
        classifies: Whether hits are counted; see `Task.classifies`.
    """

    name = "meter"

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        processes: Processes = ALONE,
        *,
        size: Callable[[Any], int] = len,
        classifies: bool = True,
    ) -> None:
        self._size, self._classifies = size, classifies
        self._processes = processes
        self._clock = clock
        self._loss_sum, self._hits, self._images, self._seen = 0.0, 0, 0, 0
        # Loss sum, hits and images that the open window already had when the run was resumed.
        self._window: tuple[float, int, int] = _NOTHING
        # Micro-batches since the last count of hits; those of the open window come last.
        self._micro_batches: list[MicroBatch] = []
        self._closed = self._waiting = 0
        # For each step: the loss sum that its window already had, and its number of micro-batches.
        self._steps: list[tuple[float, int]] = []
        # Hits and losses that are still on the device. For each window of these: the loss sum that
        # it already had, and the sizes of its micro-batches.
        self._found: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []
        self._weights: list[tuple[float, list[int]]] = []
        self._started = clock()

    def micro_batch(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Keep a micro-batch; the true class of a mixed label is the one with the largest share."""
        count = self._size(labels)
        if not self._classifies:
            logits = labels = _NONE
        size = logits.numel()
        if size > LARGE:
            logits, labels, size = _classes(logits), _classes(labels), LARGE
        self._waiting += size or 1
        self._micro_batches.append((loss, logits, labels, count))

    def stepped(self, step: int, result: StepResult | None) -> None:
        """End a step, which consists of the micro-batches since the last step.

        A step that an observer vetoed counts for the speed only.
        """
        if result is None:
            self._seen += self._window[2] + _images(self._open_window())
            del self._micro_batches[self._closed :]
        else:
            held, hits, images = self._window
            self._hits, self._images = self._hits + hits, self._images + images
            self._seen += images
            self._steps.append((held, len(self._micro_batches) - self._closed))
            self._closed = len(self._micro_batches)
            if self._waiting > MOST:
                self._count()
        self._window = _NOTHING

    def interval(self) -> dict[str, float]:
        """Wait for the device, return the figures of the interval, and start a new interval.

        Returns:
            `loss`, the mean over the images, and `accuracy`, 0 to 1, if hits are counted; both are
            nan if all steps were vetoed. `images_per_second`, of training time only.
        """
        self._read()
        loss_sum, hits, counted, seen = self._processes.sums(
            [self._loss_sum, float(self._hits), self._images, self._seen]
        )
        figures = {"loss": loss_sum / counted if counted else math.nan}
        if self._classifies:
            figures["accuracy"] = hits / counted if counted else math.nan
        figures["images_per_second"] = seen / (self._clock() - self._started)
        self._start()
        return figures

    def state_dict(self) -> State:
        """Return this process's sums of the interval so far; waits for the device."""
        self._read()
        return {
            "loss_sum": self._loss_sum,
            "hits": self._hits,
            "images": self._images,
            "seen": self._seen,
            "seconds": self._clock() - self._started,
            "window": self._read_window(),
        }

    def load_state_dict(self, state: State) -> None:
        self._start()
        self._loss_sum, self._hits = state["loss_sum"], state["hits"]
        self._images, self._seen = state["images"], state["seen"]
        self._started -= state["seconds"]
        self._window = tuple(state["window"])

    def redistributed(self, states: Sequence[State], *, first: bool) -> State | None:
        """Return the sums of all saved states for the first process, and None for the others."""
        if not first:
            return None
        sums = ("loss_sum", "hits", "images", "seen")
        windows = zip(*(state["window"] for state in states), strict=True)
        return {
            **states[0],
            **{name: sum(state[name] for state in states) for name in sums},
            "window": [sum(window) for window in windows],
        }

    def _start(self) -> None:
        self._loss_sum, self._hits, self._images, self._seen = 0.0, 0, 0, 0
        self._window = _NOTHING
        self._micro_batches, self._closed, self._waiting = [], 0, 0
        self._steps, self._weights = [], []
        self._found, self._losses = [], []
        self._started = self._clock()

    def _open_window(self) -> list[MicroBatch]:
        return self._micro_batches[self._closed :]

    def _count(self) -> None:
        """Count the hits of all closed windows on the device, without waiting for the device."""
        closed, self._micro_batches = self._micro_batches[: self._closed], self._open_window()
        sizes, start = [count for *_, count in closed], 0
        for held, count in self._steps:
            self._weights.append((held, sizes[start : start + count]))
            start += count
        if closed:
            self._losses.append(torch.stack([loss for loss, *_ in closed]))
            self._found.append(_hits(closed))
        images = sum(sizes)
        self._images, self._seen = self._images + images, self._seen + images
        self._steps, self._closed, self._waiting = [], 0, 0

    def _read(self) -> None:
        """Read hits and losses from the device and add them; losses step after step, in fp32."""
        self._count()
        if self._weights:
            losses = [loss for some in self._losses for loss in some.float().tolist()]
            self._loss_sum = _weighted_sum(self._loss_sum, self._weights, losses)
            self._hits += sum(map(int, self._found))
            self._losses, self._weights, self._found = [], [], []

    def _read_window(self) -> list[float]:
        """Return loss sum, hits and images of the open window; waits for the device."""
        loss_sum, hits, images = self._window
        if window := self._open_window():
            losses = torch.stack([loss for loss, *_ in window]).float().tolist()
            weights = (loss_sum, [count for *_, count in window])
            loss_sum = _weighted_sum(0.0, [weights], losses)
            hits, images = hits + int(_hits(window)), images + sum(weights[1])
        return [loss_sum, hits, images]


def _weighted_sum(
    start: float, windows: Sequence[tuple[float, Sequence[int]]], losses: Sequence[float]
) -> float:
    """Add the loss sums of windows to `start`, one after the other, in fp32.

    Args:
        start: The sum so far.
        windows: For each window, the loss sum that it already has, and the sizes of the
            micro-batches to add.
        losses: Mean losses of all these micro-batches, in order.
    """
    rest, total = iter(losses), start
    for held, sizes in windows:
        window = held
        for size in sizes:
            product = _fp32(next(rest) * size)
            window = _fp32(window + product) if window else product
        total = _fp32(total + window)
    return total


def _fp32(value: float) -> float:
    """Round to fp32; for a sum or product of two fp32 numbers, this equals fp32 arithmetic."""
    try:
        return float(_FP32.unpack(_FP32.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _hits(micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
    """Return the number of correctly classified images, an int64 scalar on the device."""
    total: torch.Tensor | None = None
    for _, group in groupby(micro_batches, _dimensions):
        _, logits, labels, _ = zip(*group, strict=True)
        right = _classes(torch.cat(logits)) == _classes(torch.cat(labels))
        hits = torch.count_nonzero(right)
        total = hits if total is None else total + hits
    assert total is not None
    return total


def _dimensions(micro_batch: MicroBatch) -> tuple[int, int]:
    """Return the dimensions of logits and labels, by which `_hits` groups micro-batches."""
    return micro_batch[1].ndim, micro_batch[2].ndim


def _images(micro_batches: Sequence[MicroBatch]) -> int:
    return sum([count for *_, count in micro_batches])


def _classes(scores: torch.Tensor) -> torch.Tensor:
    """Return the class with the highest score, int64 (N,), of logits or mixed labels (N, classes).

    Class indices (N,) are returned unchanged.
    """
    return scores.argmax(1) if scores.ndim == 2 else scores
