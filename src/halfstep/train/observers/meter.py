"""Loss, accuracy and speed of a training interval, added up when many steps have come together.

Reading the loss of every step would make a GPU wait for each of them, and to add it up there would
cost each step a few small kernels. So losses and logits are kept as they come. Hits are counted in
one pass over the logits of many steps; losses are read and added when the interval ends.
"""

from __future__ import annotations

import math
import time
from itertools import groupby
from struct import Struct
from typing import TYPE_CHECKING

import torch

from halfstep.train.processes.processes import ALONE
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.engine import StepResult
    from halfstep.train.processes.processes import Processes
    from halfstep.train.store.checkpoint import State

LARGE = 2**12
"""Logits of a micro-batch of which only the classes are kept."""
MOST = 2**17
"""Logits after which hits are counted."""

_FP32 = Struct("f")
_NOTHING = (0.0, 0, 0)
MicroBatch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Mean loss, a scalar; logits (N, classes), or their classes, int64 (N,); labels likewise."""


class Meter(Observer):
    """Adds up losses and hits, in the end over all processes."""

    name = "meter"

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        processes: Processes = ALONE,
    ) -> None:
        self._processes = processes
        self._clock = clock
        self._loss_sum, self._hits, self._images, self._seen = 0.0, 0, 0, 0
        # Loss, hits and images of the open window when its process was resumed.
        self._window: tuple[float, int, int] = _NOTHING
        # All micro-batches since hits were counted; those of the open window come last.
        self._micro_batches: list[MicroBatch] = []
        self._closed = self._waiting = 0
        # Of each step: the loss that its window held already, and its number of micro-batches.
        self._steps: list[tuple[float, int]] = []
        # What is still on the device: hits, losses, and what each window of these is made of.
        self._found: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []
        self._weights: list[tuple[float, list[int]]] = []
        self._started = clock()

    def micro_batch(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Keep a micro-batch; where labels are mixed, the greater part is the right one."""
        size = logits.numel()
        if size > LARGE:
            logits, labels, size = _classes(logits), _classes(labels), LARGE
        self._waiting += size
        self._micro_batches.append((loss, logits, labels))

    def stepped(self, step: int, result: StepResult | None) -> None:
        """End a step, to which the micro-batches since the last belong.

        One that was left out for its loss counts for the speed only.
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
        """Wait for the device, return what was added up, and start anew.

        Returns:
            `loss`, the mean over the images, and `accuracy`, 0 to 1; nan if all of them were in
            steps that were left out. `images_per_second`, of training alone.
        """
        self._read()
        loss_sum, hits, counted, seen = self._processes.sums(
            [self._loss_sum, float(self._hits), self._images, self._seen]
        )
        found = {
            "loss": loss_sum / counted if counted else math.nan,
            "accuracy": hits / counted if counted else math.nan,
            "images_per_second": seen / (self._clock() - self._started),
        }
        self._start()
        return found

    def state_dict(self) -> State:
        """Return what this process has added up so far; waits for the device."""
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
        """Give the sums of processes that are gone to the first one."""
        if not first:
            return None
        sums = ("loss_sum", "hits", "images", "seen")
        windows = zip(*(state["window"] for state in states), strict=True)
        return {
            **states[0],
            **{name: sum(state[name] for state in states) for name in sums},
            "window": [sum(each) for each in windows],
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
        """Count the steps that are kept; nothing waits for the device."""
        closed, self._micro_batches = self._micro_batches[: self._closed], self._open_window()
        sizes, start = [labels.shape[0] for _, _, labels in closed], 0
        for held, count in self._steps:
            self._weights.append((held, sizes[start : start + count]))
            start += count
        if closed:
            self._losses.append(torch.stack([loss for loss, _, _ in closed]))
            self._found.append(_hits(closed))
        images = sum(sizes)
        self._images, self._seen = self._images + images, self._seen + images
        self._steps, self._closed, self._waiting = [], 0, 0

    def _read(self) -> None:
        """Wait for what was found, and add it; losses step after step, in fp32."""
        self._count()
        if self._weights:
            losses = [each for some in self._losses for each in some.float().tolist()]
            self._loss_sum = _weighted_sum(self._loss_sum, self._weights, losses)
            self._hits += sum(map(int, self._found))
            self._losses, self._weights, self._found = [], [], []

    def _read_window(self) -> list[float]:
        """Return loss, hits and images of the open window."""
        loss_sum, hits, images = self._window
        if window := self._open_window():
            losses = torch.stack([loss for loss, _, _ in window]).float().tolist()
            weights = (loss_sum, [labels.shape[0] for _, _, labels in window])
            loss_sum = _weighted_sum(0.0, [weights], losses)
            hits, images = hits + int(_hits(window)), images + sum(weights[1])
        return [loss_sum, hits, images]


def _weighted_sum(
    start: float, windows: Sequence[tuple[float, Sequence[int]]], losses: Sequence[float]
) -> float:
    """Return `start` and the sums of windows, added one after the other in fp32.

    Args:
        start: What they are added to.
        windows: Of each, what it holds already, and the sizes of the micro-batches to be added.
        losses: Of all these micro-batches.
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
    """Return the nearest fp32 number: of a sum or product of two, what fp32 arithmetic gives."""
    try:
        return float(_FP32.unpack(_FP32.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _hits(micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
    """Return how many images are classified as their labels say: int64, on the device."""
    total: torch.Tensor | None = None
    for _, group in groupby(micro_batches, _dimensions):
        _, logits, labels = zip(*group, strict=True)
        right = _classes(torch.cat(logits)) == _classes(torch.cat(labels))
        hits = torch.count_nonzero(right)
        total = hits if total is None else total + hits
    assert total is not None
    return total


def _dimensions(micro_batch: MicroBatch) -> tuple[int, int]:
    """Return what tells classes from logits, and from mixed labels: those of a kind go together."""
    return micro_batch[1].ndim, micro_batch[2].ndim


def _images(micro_batches: Sequence[MicroBatch]) -> int:
    return sum([labels.shape[0] for _, _, labels in micro_batches])


def _classes(scores: torch.Tensor) -> torch.Tensor:
    """Return the classes that logits, or the parts of mixed labels, are greatest for."""
    return scores.argmax(1) if scores.ndim == 2 else scores
