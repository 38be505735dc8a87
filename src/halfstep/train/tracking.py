"""Where the figures of a run go: `metrics.jsonl`, TensorBoard, and a progress bar.

The files are for programs and for later; the bar is for the person who watches, and is not drawn
where nobody does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard.writer import SummaryWriter

from halfstep.train.files import json_text

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

Figures = dict[str, Any]


class Tracker:
    """Writes the figures of one run; a context manager.

    Args:
        run: The run directory.
        steps: Optimizer steps of the whole run.
        title: What the bar is called.
        quiet: Whether to draw no bar even on a terminal.
        console: Where the bar goes.
    """

    def __init__(
        self, run: Path, *, steps: int, title: str, quiet: bool, console: Console | None = None
    ) -> None:
        console = console or Console()
        self._lines = (run / "metrics.jsonl").open("w", encoding="utf-8")
        self._events = SummaryWriter(str(run / "tensorboard"))
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=steps, figures="")

    def train(self, figures: Figures, memory_bytes: int) -> None:
        """Record an interval of training; `figures` holds at least step, epoch, loss, accuracy."""
        self._write("train", figures)
        said = (
            f"epoch {figures['epoch']}  loss {figures['loss']:.4f}  "
            f"acc {figures['accuracy']:.1%}  {figures['images_per_second']:.0f} img/s  "
            f"{memory_bytes / 2**20:.0f} MiB  scale {figures['loss_scale']:g}"
        )
        self._bar.update(self._task, completed=figures["step"], figures=said)

    def validation(self, figures: Figures) -> None:
        """Record the figures of a validation; they hold at least step, epoch, loss, accuracy."""
        self._write("val", figures)
        if not self._bar.disable:
            self._bar.console.print(
                f"epoch {figures['epoch']}: val loss {figures['loss']:.4f}, "
                f"val accuracy {figures['accuracy']:.2%}",
                highlight=False,
            )

    def _write(self, kind: str, figures: Figures) -> None:
        self._lines.write(json_text({"kind": kind, **figures}) + "\n")
        self._lines.flush()
        for name, value in figures.items():
            if isinstance(value, float):
                self._events.add_scalar(f"{kind}/{name}", value, figures["step"])

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
        self._events.close()
        self._lines.close()
