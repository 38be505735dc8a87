"""Observers that record the figures of a run: in `metrics.jsonl`, on a progress bar, and in sinks.

The bar is drawn only on a terminal. Only the first process has these observers.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from halfstep.train.observers import sinks
from halfstep.train.run.observer import Observer
from halfstep.train.store import rotation
from halfstep.train.store.metrics_log import FILE, MetricsLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from halfstep.train.observers.sinks import Sink
    from halfstep.train.run.training import Training
    from halfstep.train.run.validate import Figures


class MetricsLines(Observer):
    """Writes every line of figures to `metrics.jsonl`."""

    def begin(self, training: Training) -> None:
        self._log = MetricsLog(training.run, goes_on=training.resumed_at is not None)

    def end(self, error: BaseException | None) -> None:
        with _going_on():
            self._log.close()

    def record(self, kind: str, figures: Mapping[str, Any]) -> None:
        with _going_on():
            self._log.append(kind, figures)

    def before_checkpoint(self) -> None:
        """Write all lines that are not written yet, so that they precede the checkpoint."""
        self._log.write_out()


@contextmanager
def _going_on() -> Iterator[None]:
    """Warn if lines cannot be written, instead of ending the run."""
    try:
        yield
    except OSError as error:
        rotation.warn(f"{FILE} could not be written: {error.strerror or error}")


class Bar(Observer):
    """Shows a progress bar, unless `quiet`; prints a line for each validation."""

    def __init__(
        self, memory_bytes: Callable[[], int], *, quiet: bool, console: Console | None = None
    ) -> None:
        self._memory_bytes = memory_bytes
        self._console = console or Console()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )

    def begin(self, training: Training) -> None:
        steps, done = training.setup.steps, training.resumed_at or 0
        self._task = self._bar.add_task(training.title, total=steps, completed=done, figures="")
        self._bar.start()

    def end(self, error: BaseException | None) -> None:
        self._bar.stop()

    def record(self, kind: str, figures: Mapping[str, Any]) -> None:
        if self._bar.disable:
            return
        if kind == "train":
            said = (
                f"epoch {figures['epoch']}  loss {figures['loss']:.4f}  "
                f"acc {figures['accuracy']:.1%}  {figures['images_per_second']:.0f} img/s  "
                f"{self._memory_bytes() / 2**20:.0f} MiB  scale {figures['loss_scale']:g}"
            )
            self._bar.update(self._task, completed=figures["step"], figures=said)
        elif kind == "val":
            self._console.print(
                f"epoch {figures['epoch']}: val loss {figures['loss']:.4f}, "
                f"val accuracy {figures['accuracy']:.2%}",
                highlight=False,
            )


class Sinks(Observer):
    """Passes figures to the sinks that the config names."""

    def begin(self, training: Training) -> None:
        self._training = training
        self._sinks: list[Sink] = sinks.build(
            training.config.tracking,
            training.run,
            title=training.title,
            settings=training.config.model_dump(mode="json"),
            resumed_at=training.resumed_at,
        )

    def end(self, error: BaseException | None) -> None:
        for sink in self._sinks:
            sink.close()

    def record(self, kind: str, figures: Mapping[str, Any]) -> None:
        """Pass those figures that are floats to the sinks."""
        scalars = {f"{kind}/{name}": v for name, v in figures.items() if isinstance(v, float)}
        for sink in self._sinks:
            sink.scalars(scalars, figures["step"])

    def validated(self, figures: Figures) -> None:
        if figures.samples is not None:
            for sink in self._sinks:
                sink.picture("val/samples", figures.samples, self._training.step)
