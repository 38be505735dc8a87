"""Loss, accuracy and speed of a training interval, as sums that stay on the device until it ends.

Reading the loss of every step would make a GPU wait for each of them; here a step costs a few small
kernels, and `interval` waits once.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import torch

from halfstep.train.processes.processes import ALONE
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.engine import StepResult
    from halfstep.train.processes.processes import Processes
    from halfstep.train.store.checkpoint import State


class Meter(Observer):
    """Adds up losses and hits, in the end over all processes."""

    name = "meter"

    def __init__(
        self,
        device: torch.device,
        clock: Callable[[], float] = time.perf_counter,
        processes: Processes = ALONE,
    ) -> None:
        self._processes = processes
        self._clock = clock
        self._started = 0.0
        zero = torch.zeros((), device=device)
        # Of losses and of hits; never written to.
        self._none: tuple[torch.Tensor, torch.Tensor] = zero, zero.long()
        self._window_loss, self._window_hits = self._loss_sum, self._hits = self._none
        self._window_images = self._images = self._seen = 0
        self._start()

    def micro_batch(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Add a micro-batch; where labels are mixed, the greater part is the right one."""
        loss, count = loss.detach().float(), len(labels)
        called = labels.argmax(1) if labels.ndim == 2 else labels
        losses, hits = loss * count, (logits.detach().argmax(1) == called).sum()
        if self._window_images:
            losses, hits = self._window_loss + losses, self._window_hits + hits
        self._window_loss, self._window_hits = losses, hits
        self._window_images += count

    def stepped(self, step: int, result: StepResult | None) -> None:
        """End a step, to which the micro-batches since the last belong.

        One that was left out for its loss counts for the speed only.
        """
        self._seen += self._window_images
        if result is not None:
            self._loss_sum = self._loss_sum + self._window_loss
            self._hits = self._hits + self._window_hits
            self._images += self._window_images
        self._open_window()

    def interval(self) -> dict[str, float]:
        """Wait for the device, return what was added up, and start anew.

        Returns:
            `loss`, the mean over the images, and `accuracy`, 0 to 1; nan if all of them were in
            steps that were left out. `images_per_second`, of training alone.
        """
        loss_sum, hits, counted, seen = self._processes.sums(
            [float(self._loss_sum), float(self._hits), self._images, self._seen]
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
        return {
            "loss_sum": float(self._loss_sum),
            "hits": int(self._hits),
            "images": self._images,
            "seen": self._seen,
            "seconds": self._clock() - self._started,
            "window": [float(self._window_loss), int(self._window_hits), self._window_images],
        }

    def load_state_dict(self, state: State) -> None:
        self._start()
        self._open_window()
        self._loss_sum = self._loss_sum + state["loss_sum"]
        self._hits = self._hits + state["hits"]
        self._images, self._seen = state["images"], state["seen"]
        self._started -= state["seconds"]
        window_loss, window_hits, self._window_images = state["window"]
        self._window_loss = self._window_loss + window_loss
        self._window_hits = self._window_hits + window_hits

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

    def _open_window(self) -> None:
        self._window_loss, self._window_hits = self._none
        self._window_images = 0

    def _start(self) -> None:
        self._loss_sum, self._hits = self._none
        self._images = 0
        self._seen = 0
        self._started = self._clock()
