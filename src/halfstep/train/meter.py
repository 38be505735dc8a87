"""Running sums of a training interval that stay on the device until they are read.

Reading the loss of every step would make a GPU wait for each of them; here a step costs a few small
kernels, and `read` waits once.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from halfstep.train.processes import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.engine import StepResult
    from halfstep.train.processes import Processes


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened since the last reading.

    Attributes:
        loss: Mean over the images; nan if all of them were in steps that were left out.
        accuracy: Share of the images, 0 to 1; where labels are mixed, of the greater part.
        images_per_second: Of training alone.
        nonfinite_step: First optimizer step (1-based) with a loss that was not finite, or None.
        poisoned_step: First one of them whose update was really made, or None.
    """

    loss: float
    accuracy: float
    images_per_second: float
    nonfinite_step: int | None
    poisoned_step: int | None


class Meter:
    """Adds up losses and hits.

    Args:
        device: Where logits are.
        clock: Counts the seconds of training.
        processes: Those whose sums are added up when they are read.
    """

    def __init__(
        self,
        device: torch.device,
        clock: Callable[[], float] = time.perf_counter,
        processes: Processes = ALONE,
    ) -> None:
        self._device = device
        self._processes = processes
        self._clock = clock
        self._started = 0.0
        self._windows: list[tuple[int, torch.Tensor, StepResult | None]] = []
        self._bad_before: list[list[int | None]] = []
        self._window_finite = torch.ones((), dtype=torch.bool, device=device)
        self._open_window()
        self._start()

    def add(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Add a micro-batch.

        Args:
            loss: Its mean loss, a scalar.
            logits: Shape (N, classes).
            labels: Shape (N,), or probabilities (N, classes).
        """
        loss, count = loss.detach().float(), len(labels)
        called = labels.argmax(1) if labels.ndim == 2 else labels
        self._window_loss += loss * count
        self._window_hits += (logits.detach().argmax(1) == called).sum()
        self._window_images += count
        self._window_finite &= loss.isfinite()

    def close(self, step: int, result: StepResult | None) -> None:
        """End optimizer step number `step`, to which the micro-batches since the last belong.

        Args:
            step: Its number.
            result: What became of it; None where it was left out for its loss, which then does not
                count.
        """
        self._windows.append((step, self._window_finite, result))
        self._seen += self._window_images
        if result is not None:
            self._loss_sum += self._window_loss
            self._hits += self._window_hits
            self._images += self._window_images
        self._open_window()

    def read(self) -> Interval:
        """Wait for the device, return what was added up, and start anew."""
        nonfinite, poisoned = self._bad_steps()
        loss_sum, hits, counted, seen = self._processes.sums(
            [float(self._loss_sum), float(self._hits), self._images, self._seen]
        )
        interval = Interval(
            loss=loss_sum / counted if counted else math.nan,
            accuracy=hits / counted if counted else math.nan,
            images_per_second=seen / (self._clock() - self._started),
            nonfinite_step=nonfinite,
            poisoned_step=poisoned,
        )
        self._start()
        return interval

    def state_dict(self) -> dict[str, Any]:
        """Return what this process has added up so far, as plain data; waits for the device."""
        nonfinite, poisoned = self._bad_steps()
        return {
            "loss_sum": float(self._loss_sum),
            "hits": int(self._hits),
            "images": self._images,
            "seen": self._seen,
            "seconds": self._clock() - self._started,
            "windows": len(self._windows),
            "bad": [nonfinite, poisoned],
            "window": [float(self._window_loss), int(self._window_hits), self._window_images],
            "window_finite": bool(self._window_finite),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._start()
        self._open_window()
        self._loss_sum += state["loss_sum"]
        self._hits += state["hits"]
        self._images, self._seen = state["images"], state["seen"]
        self._started -= state["seconds"]
        if state["windows"]:
            self._bad_before = [state["bad"]]
        window_loss, window_hits, self._window_images = state["window"]
        self._window_loss += window_loss
        self._window_hits += window_hits
        self._window_finite &= state["window_finite"]

    def _bad_steps(self) -> tuple[int | None, int | None]:
        """Return the first step whose loss was not finite, and the first that was still made."""
        finite = (
            torch.stack([window for _, window, _ in self._windows]).tolist()
            if self._windows
            else []
        )
        if self._windows:
            heard = self._processes.numbers(finite)
            finite = [all(of_window) for of_window in zip(*heard, strict=True)]
        bad = [each for each, is_finite in zip(self._windows, finite, strict=True) if not is_finite]
        poisoned = next((step for step, _, result in bad if result and result.stepped), None)
        nonfinite = bad[0][0] if bad else None
        for earlier in self._bad_before:
            nonfinite, poisoned = earlier[0] or nonfinite, earlier[1] or poisoned
        return nonfinite, poisoned

    def _open_window(self) -> None:
        self._window_loss = torch.zeros((), device=self._device)
        self._window_hits = torch.zeros((), dtype=torch.int64, device=self._device)
        self._window_images = 0
        self._window_finite = torch.ones((), dtype=torch.bool, device=self._device)

    def _start(self) -> None:
        self._loss_sum = torch.zeros((), device=self._device)
        self._hits = torch.zeros((), dtype=torch.int64, device=self._device)
        self._windows = []
        self._bad_before = []
        self._images = 0
        self._seen = 0
        self._started = self._clock()
