"""Observers that record the figures of a run: in `metrics.jsonl`, and in sinks.

Only the first process has these observers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.train.observers import sinks
from halfstep.train.run.observer import Observer
from halfstep.train.store import rotation
from halfstep.train.store.metrics_log import FILE, MetricsLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.train.observers.sinks import Sink
    from halfstep.train.run.training import Training
    from halfstep.train.task.figures import Figures


class MetricsLines(Observer):
    """Writes every line of figures to `metrics.jsonl`."""

    def begin(self, training: Training) -> None:
        self._log = MetricsLog(training.run, goes_on=training.resumed_at is not None)

    def end(self, error: BaseException | None) -> None:
        with rotation.going_on(FILE):
            self._log.close()

    def record(self, kind: str, figures: Mapping[str, Any]) -> None:
        with rotation.going_on(FILE):
            self._log.append(kind, figures)

    def before_checkpoint(self) -> None:
        """Write all lines that are not written yet, so that they precede the checkpoint."""
        self._log.write_out()


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
