"""Shows the progress of a run: a bar on a terminal, and lines elsewhere and in `log.txt`.

A line is written for each epoch, and once a minute during an epoch. Only the first process has this
observer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from halfstep.errors import in_a_line
from halfstep.plurals import counted
from halfstep.show.units import duration, rate
from halfstep.train.observers.progress_bar import ProgressLine, loss_text
from halfstep.train.run.observer import Observer
from halfstep.train.store import rotation
from halfstep.train.store.line_file import LOG, LineFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from halfstep.train.run.training import Training

EVERY_S = 60.0
"""The longest time in seconds without a line, unless one micro-batch or a validation is longer."""

_NOT_SHOWN = {"epoch", "step", "loss", "accuracy", "top5", "macro_f1"}
"""The figures of a validation that are shown in another way, or only in `metrics.jsonl`."""


class ProgressReport(Observer):
    """Shows a bar on a terminal, prints lines elsewhere, and writes `log.txt`.

    Args:
        memory_bytes: Returns the peak memory so far.
        quiet: Whether to show nothing; `log.txt` is written all the same.
        console: The console to print to; by default stdout.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        memory_bytes: Callable[[], int],
        *,
        quiet: bool,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._console = console or Console()
        self._draws = self._console.is_interactive and not quiet
        self._prints = not (self._console.is_interactive or quiet)
        self._clock = clock
        self._figures: Mapping[str, Any] = {}
        self._memory = 0
        self._loss: torch.Tensor | None = None

    def begin(self, training: Training) -> None:
        setup, resumed_at = training.setup, training.resumed_at
        self._training = training
        self._epochs = -(-setup.steps // setup.steps_per_epoch)
        self._began_at_step, self._began = resumed_at or 0, self._clock()
        self._lines = LineFile(training.run / LOG, goes_on=resumed_at is not None)
        length = f"{counted(setup.steps, 'step')} in {counted(self._epochs, 'epoch')}"
        resumed = f", resumed at step {resumed_at}" if resumed_at is not None else ""
        self._write(f"{training.title}: {length}{resumed}")
        self._live = Live(
            console=self._console, get_renderable=self._progress_line, refresh_per_second=4
        )
        if self._draws:
            self._live.start()

    def end(self, error: BaseException | None) -> None:
        """Stop the bar, and write to `log.txt` why the run ended, unless it finished."""
        self._live.stop()
        progress = self._training.progress
        reason = in_a_line(error) if error is not None else progress.error or progress.note
        with rotation.going_on(LOG):
            if reason:
                self._lines.add(reason)
            self._lines.write_out()
        self._lines.close()

    def micro_batch(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Write a line if the last one is a minute old; this reads the loss from the device."""
        self._loss = loss
        if self._clock() - self._written >= EVERY_S:
            self._write(self._line())

    def record(self, kind: str, figures: Mapping[str, Any]) -> None:
        if kind == "train":
            self._figures = figures
            self._memory = self._memory_bytes() if self._draws else 0
        elif kind == "val":
            self._write(self._line(figures))
            if self._draws:
                texts = ", ".join(_validation_texts(figures))
                self._console.print(f"epoch {figures['epoch']}: {texts}", highlight=False)

    def epoch_done(self) -> Mapping[str, Any]:
        """Write the line of an epoch that is not validated."""
        if not self._training.validation_due:
            self._write(self._line())
        return {}

    def _write(self, line: str) -> None:
        self._written = self._clock()
        with rotation.going_on(LOG):
            self._lines.add(line)
            self._lines.write_out()
        if self._prints:
            try:
                print(line, file=self._console.file, flush=True)
            except (OSError, ValueError):  # closed, or read no longer; the run goes on
                self._prints = False

    def _line(self, validation: Mapping[str, Any] | None = None) -> str:
        training, left = self._training, self._seconds_left()
        loss = self._figures.get("loss", self._loss)
        speed = self._figures.get("images_per_second")
        if speed is None:
            speed = training.progress.images / max(training.stopwatch.seconds, 1e-9)
        parts = [
            f"epoch {training.progress.epoch}/{self._epochs}",
            f"step {training.step}/{training.setup.steps}",
            *([f"loss {loss_text(float(loss))}"] if loss is not None else []),
        ]
        if validation is not None:
            parts += _validation_texts(validation)
        parts.append(f"{rate(speed)} {training.setup.task.unit}/s")
        return ", ".join([*parts, *([f"{duration(left)} left"] if left is not None else [])])

    def _seconds_left(self) -> float | None:
        """Predict the time to the last step, from all of this process's time and steps."""
        training = self._training
        done = training.step - self._began_at_step
        left = max(training.setup.steps - training.step, 0)
        return left * (self._clock() - self._began) / done if done > 0 else None

    def _progress_line(self) -> ProgressLine:
        training = self._training
        return ProgressLine(
            training.title,
            min(training.progress.epoch, self._epochs),
            self._epochs,
            training.step,
            training.setup.steps,
            self._seconds_left(),
            self._memory,
            self._figures,
            "img" if training.setup.task.unit == "images" else training.setup.task.unit,
        )


def _validation_texts(figures: Mapping[str, Any]) -> list[str]:
    """Return the loss and the metrics of a validation, without further metrics of images."""
    accuracy = figures.get("accuracy")
    metrics = {name: value for name, value in figures.items() if name not in _NOT_SHOWN}
    return [
        f"val loss {loss_text(figures['loss'])}",
        *([] if accuracy is None else [f"val accuracy {accuracy:.2%}"]),
        *(f"val {name} {value:.4g}" for name, value in metrics.items()),
    ]
