"""Where the figures of a run go: `metrics.jsonl`, a progress bar, and the sinks of the config.

The files are for programs and for later; the bar is for the person who watches, and is not drawn
where nobody does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from halfstep.files import json_text
from halfstep.train import rotation, sinks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    import torch

Figures = dict[str, Any]


class Tracker:
    """Writes the figures of one run; a context manager.

    Args:
        run: The run directory.
        steps: Optimizer steps of the whole run.
        title: What the bar is called, and the run elsewhere.
        quiet: Whether to draw no bar even on a terminal.
        names: The sinks: of tensorboard, wandb, mlflow.
        settings: The config as plain data, for sinks that keep it.
        resumed_at: The step that the run goes on from; None starts the files anew.
        console: Where the bar goes.

    Raises:
        UserError: If the package of a sink is not installed.
    """

    def __init__(
        self,
        run: Path,
        *,
        steps: int,
        title: str,
        quiet: bool,
        names: Sequence[str] = ("tensorboard",),
        settings: Mapping[str, Any] | None = None,
        resumed_at: int | None = None,
        console: Console | None = None,
    ) -> None:
        console = console or Console()
        self._sinks = sinks.build(
            names, run, title=title, settings=settings or {}, resumed_at=resumed_at
        )
        mode = "w" if resumed_at is None else "a"
        # Without a buffer: it would lose what a full disk does not take.
        self._lines = (run / "metrics.jsonl").open(f"{mode}b", buffering=0)
        self._unwritten = b""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=steps, completed=resumed_at or 0, figures="")

    def train(self, figures: Figures, memory_bytes: int) -> None:
        """Record an interval of training; `figures` holds at least step, epoch, loss, accuracy."""
        self._write("train", figures)
        said = (
            f"epoch {figures['epoch']}  loss {figures['loss']:.4f}  "
            f"acc {figures['accuracy']:.1%}  {figures['images_per_second']:.0f} img/s  "
            f"{memory_bytes / 2**20:.0f} MiB  scale {figures['loss_scale']:g}"
        )
        self._bar.update(self._task, completed=figures["step"], figures=said)

    def validation(self, figures: Figures, samples: torch.Tensor | None = None) -> None:
        """Record a validation.

        Args:
            figures: At least step, epoch, loss, accuracy.
            samples: A picture of some predictions, uint8, shape (3, height, width).
        """
        self._write("val", figures)
        if samples is not None:
            for sink in self._sinks:
                sink.picture("val/samples", samples, figures["step"])
        if not self._bar.disable:
            self._bar.console.print(
                f"epoch {figures['epoch']}: val loss {figures['loss']:.4f}, "
                f"val accuracy {figures['accuracy']:.2%}",
                highlight=False,
            )

    def probe(self, figures: Figures) -> None:
        """Record a look into the run; `figures` holds at least step and epoch."""
        self._write("probe", figures)

    def write_out(self) -> None:
        """Write the lines that a full disk did not take when they came.

        Raises:
            OSError: If it still does not.
        """
        while self._unwritten:
            self._unwritten = self._unwritten[self._lines.write(self._unwritten) :]

    def _write(self, kind: str, figures: Figures) -> None:
        self._unwritten += f"{json_text({'kind': kind, **figures})}\n".encode()
        try:
            self.write_out()
        except OSError as error:  # a full disk is no reason to end a run
            rotation.warn(f"metrics.jsonl could not be written: {error.strerror or error}")
        scalars = {f"{kind}/{name}": v for name, v in figures.items() if isinstance(v, float)}
        for sink in self._sinks:
            sink.scalars(scalars, figures["step"])

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()
        for sink in self._sinks:
            sink.close()
        self._lines.close()


class NoTracker:
    """Records nothing: the first of several processes tells of all of them."""

    def train(self, figures: Figures, memory_bytes: int) -> None:
        """Record nothing."""

    def validation(self, figures: Figures, samples: torch.Tensor | None = None) -> None:
        """Record nothing."""

    def probe(self, figures: Figures) -> None:
        """Record nothing."""

    def write_out(self) -> None:
        """Write nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
