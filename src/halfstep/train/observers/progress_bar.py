"""The line with which a run shows its progress on a terminal: figures, and a bar in the rest.

Every figure is shown whole or not at all. A narrow terminal gets fewer and shorter texts, but
always epoch, step, loss, speed and time left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.text import Text

from halfstep.show.units import duration, mebibytes, rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console, ConsoleOptions, RenderResult

_GAP = "  "
_LEAST = 4
"""The fewest columns in which a bar is drawn."""
_NO_BAR = -len(_GAP)
_LAYOUTS = (
    # The columns that must be left for the bar; the texts before it; the texts after it.
    (10, "title epoch", "step loss accuracy speed memory scale left"),
    (10, "title epoch", "step loss accuracy speed left"),
    (10, "epoch", "step loss accuracy speed left"),
    (_NO_BAR, "epoch", "step loss speed left"),
    (_NO_BAR, "epoch", "step loss speed left/short"),
    (_NO_BAR, "epoch/short", "step loss/short speed/short left/short"),
)
"""The layouts, the widest first. The first one that fits is used."""


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """The progress of a run as a line for rich, as wide as the terminal.

    Attributes:
        title: The title of the run.
        epoch: The current epoch, from 1.
        epochs: Number of epochs of the run.
        step: Number of finished steps.
        steps: Number of steps of the run.
        seconds_left: Predicted seconds to the end; None if unknown.
        memory_bytes: Peak memory.
        figures: The newest training figures; empty before the first ones.
        unit: What the speed counts.
    """

    title: str
    epoch: int
    epochs: int
    step: int
    steps: int
    seconds_left: float | None = None
    memory_bytes: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "img"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = self._texts()
        for least, *sides in _LAYOUTS:
            before, after = (_joined(texts, str(names)) for names in sides)
            room = options.max_width - len(f"{before}{_GAP}{_GAP}{after}")
            if room >= least:
                break
        bar = self._bar(room, console, options) if room >= _LEAST else []
        gap = _GAP if bar else ""
        yield Text.assemble(before, gap, *bar, _GAP, after, no_wrap=True, end="")

    def _bar(
        self, columns: int, console: Console, options: ConsoleOptions
    ) -> list[tuple[str, str]]:
        stroke = "-" if options.ascii_only else "━"
        done = columns * self.step // self.steps
        rest = stroke if console.color_system else " "
        return [(stroke * done, "bar.complete"), (rest * (columns - done), "bar.back")]

    def _texts(self) -> dict[str, str]:
        texts = {
            "title": self.title,
            "epoch": f"epoch {self.epoch}/{self.epochs}",
            "epoch/short": f"{self.epoch}/{self.epochs}",
            "step": f"{self.step}/{self.steps}",
        }
        if self.figures:
            loss, speed = loss_text(self.figures["loss"]), rate(self.figures["images_per_second"])
            texts |= {
                "loss": f"loss {loss}",
                "loss/short": loss,
                "speed": f"{speed} {self.unit}/s",
                "speed/short": f"{speed}/s",
                "memory": f"{mebibytes(self.memory_bytes)} MiB",
                "scale": f"scale {self.figures['loss_scale']:g}",
            }
            if "accuracy" in self.figures:
                texts["accuracy"] = f"acc {self.figures['accuracy']:.1%}"
        if self.seconds_left is not None:
            left = duration(self.seconds_left)
            texts |= {"left": f"{left} left", "left/short": left}
        return texts


def loss_text(loss: float) -> str:
    """Write a loss in at most nine characters."""
    return f"{loss:.3e}" if abs(loss) >= 10_000 else f"{loss:.4f}"


def _joined(texts: Mapping[str, str], names: str) -> str:
    return _GAP.join(texts[name] for name in names.split() if name in texts)
