"""Runs the cells of a program's own objects in this process, one after the other.

The function that builds the objects may be anything, such as a function in a notebook, which no
other process could import. So a Python exception becomes the cell's result, and only a crash of the
process itself ends the comparison; the same call then continues from the finished cells.
"""

from __future__ import annotations

import gc
import sys
import traceback
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.compare.cells.directory import result_of
from halfstep.compare.cells.results import Result
from halfstep.errors import UserError, in_a_line
from halfstep.train.store import diagnosis_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.compare.cells.schedule import Started
    from halfstep.compare.plan.grid import Cell


@dataclass(frozen=True, slots=True)
class Ended:
    """A cell that has ended."""

    result: Result

    def poll(self) -> Result:
        """Return the result of the cell."""
        return self.result


class InTurn:
    """A place with one slot: this process.

    Args:
        run: Trains a cell, and writes its run directory.
    """

    slots = ("this process",)

    def __init__(self, run: Callable[[Cell], None]) -> None:
        self._run = run

    def start(self, cell: Cell, slot: str) -> Ended:
        """Train a cell whose directory is prepared, and wait for its end."""
        del slot
        message = None
        with (cell.directory / "stderr.log").open("w", encoding="utf-8") as errors:
            try:
                with redirect_stderr(errors):
                    self._run(cell)
            except Exception as error:  # noqa: BLE001  (of the user's code, or of its diagnosis)
                message = str(error) if isinstance(error, UserError) else in_a_line(error)
                traceback.print_exc(file=errors)
        _free_memory()
        if message is not None:
            cause = diagnosis_file.in_a_line(cell.run_directory)
            return Ended(Result(cell, "crashed", message, cause=cause))
        return Ended(result_of(cell))

    def end(self, running: Sequence[Started]) -> None:
        """Do nothing: no cell runs while another one starts."""

    def close(self) -> None:
        """Do nothing: there is no other process."""


def _free_memory() -> None:
    """Free the objects of a cell, so that the next one starts with as much memory."""
    gc.collect()
    if "torch" in sys.modules:
        from halfstep.kernels.accelerators import empty_cache  # imports torch

        empty_cache()
