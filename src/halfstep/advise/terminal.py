"""What `halfstep advise` prints: costs, the answer, the lines to write, and its progress."""

from __future__ import annotations

import math
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from halfstep.advise import table
from halfstep.advise.choose import show
from halfstep.advise.predict import native_fp8
from halfstep.plurals import counted
from halfstep.show.text import print_code, print_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from halfstep.advise.answer import Answer
    from halfstep.advise.choose.clock import Tell
    from halfstep.advise.predict.forecast import Forecast
    from halfstep.advise.subject import Subject

LINES = 30.0
"""Seconds between lines of progress if stderr is not a terminal."""


class Terminal:
    """Prints an answer on stdout, and its progress on stderr.

    Args:
        quiet: Whether to print only the progress.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(quiet=quiet)

    def few(self, batches: int, wanted: int) -> None:
        """Warn of a subject with few batches."""
        _tell(
            f"only {counted(batches, 'batch', 'batches')} instead of {wanted}, so they are "
            "repeated; the variance between batches, and the results that depend on it, are less "
            "certain"
        )

    def costs(
        self,
        subject: Subject,
        costs: Sequence[Forecast],
        names: Sequence[str],
        examine: str | None,
    ) -> None:
        """Print the predicted costs, and the fastest recipes if nothing else is examined.

        Args:
            subject: The subject.
            costs: The costs.
            names: The recipes that were asked for.
            examine: The command that examines the recipes; None if they are examined next.
        """
        gpus = [*dict.fromkeys(each.gpu for each in costs)]
        lines, command = native_fp8.lines(subject, gpus, costs[0].batch), ""
        notes = [table.TRIED_NEXT] if examine is None else []
        table.show(self._console, subject.name, costs, *notes)
        if examine is not None:
            lines += native_fp8.not_predicted(names, gpus)
            traced = {"fp32", "tf32", *(cost.recipe for cost in costs)}
            if late := ", ".join(name for name in names if name not in traced):
                _tell(f"the budget was spent before {late} was traced")
            said, command = table.fastest(costs, examine)
            lines += said
        for line in lines:
            print_text(self._console, line)
        if command:
            print_code(self._console, f"  {command}")

    def answer(
        self, found: Answer, shown: Sequence[Forecast], needed: float, available: float | None
    ) -> None:
        """Print the answer, the costs that changed since they were printed, and what follows.

        Args:
            found: The answer.
            shown: The costs as they were printed.
            needed: Estimated seconds to examine all recipes.
            available: Seconds of the verification that follows; None if none follows.
        """
        if found.advice:
            show.show(self._console, found)
        if changed := table.changed(found.costs, shown):
            table.show(self._console, found.subject.name, changed, table.CHANGED)
        show.conclude(self._console, found, _enough(needed))
        names = ", ".join(trial.base for trial in found.recommended)
        if not names:
            return
        said = f"{names}: not verified in short training runs (--no-verify)"
        if available is not None:
            said = (
                f"advise now verifies {names} in short training runs, in at most {available:.0f} "
                "s; Ctrl-C ends this, and keeps the recommendation"
            )
        print_text(self._console, said)

    def settings(self, found: Answer, before: Answer) -> None:
        """Print the verifications, the choices that they changed, and the lines to write."""
        show.settings(self._console, found, before)

    def files(self, found: Answer, written: Sequence[str], directory: Path) -> None:
        """Print the names of the files, and why some GPUs have none."""
        names = f"{', '.join(written[:-1])} and {written[-1]}"
        print_text(self._console, f"{names} are in {directory}")
        bare = [
            each.gpu.name for each in found.choices if each.best is None and not each.reference.fits
        ]
        if bare:
            print_text(
                self._console,
                f"no recipe file for {', '.join(bare)}: no recipe fits into memory there",
            )

    @contextmanager
    def progress(self, stages: int | None = None) -> Iterator[Tell]:
        """Show progress: on a terminal as a bar over the stages, otherwise as lines on stderr.

        A line is printed when a stage begins, and after `LINES` seconds without a line.
        """
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        console = Console(stderr=True)
        disable = not console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=disable) as progress:
            task = progress.add_task("loading", total=stages)
            stage, begun, said_at = "", -1, -math.inf

            def tell(what: str, detail: str = "", /) -> None:
                nonlocal stage, begun, said_at
                begun += what != stage
                described = f"{what}: {detail}" if detail else what
                if not disable:
                    known = stages is not None and begun <= stages
                    total = stages if known else None
                    progress.update(
                        task, description=described, completed=begun if known else 0, total=total
                    )
                elif what != stage or time.monotonic() - said_at >= LINES:
                    _tell(described)
                    said_at = time.monotonic()
                stage = what

            yield tell


def _tell(line: str) -> None:
    print(f"advise: {line}", file=sys.stderr, flush=True)  # noqa: T201


def _enough(seconds: float) -> str:
    """Say which budget is large enough, such as "--budget 25m"."""
    minutes = math.ceil(1.2 * seconds / 60)
    return f"to examine all: --budget {minutes}m --no-verify; to verify as well, a longer budget"
