"""Runs the missing cells of a comparison, and keeps its tables up to date."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from halfstep.compare.cells.directory import changed_since, claimed, prepare, result_of
from halfstep.compare.cells.progress import CellsDone
from halfstep.compare.cells.results import Result
from halfstep.compare.cells.schedule import ThisMachine, run_all
from halfstep.compare.cells.versions import different_versions
from halfstep.compare.output.tables import keep_tables, write_tables
from halfstep.compare.rows.predicted import nothing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from halfstep.compare.cells.runner import Command
    from halfstep.compare.cells.schedule import Place
    from halfstep.compare.cells.warm import Server
    from halfstep.compare.plan.grid import Cell, Plan
    from halfstep.compare.rows.predicted import Predict


def compare(
    plan: Plan,
    command: Command,
    console: Console,
    *,
    fresh: bool = False,
    place: Place | None = None,
    predict: Predict = nothing,
    python: Server | None = None,
) -> list[Result]:
    """Run the cells that have no result yet.

    The failure of a cell is recorded as its result, and the other cells still run.

    Args:
        plan: The cells, the directory and the devices.
        command: Returns the program and arguments that run a cell.
        console: Where progress is printed.
        fresh: Whether to repeat the cells that already have a result.
        place: Where the cells run; default: on the plan's devices of this machine.
        predict: Returns the predicted cost of the rows on GPUs that this machine lacks.
        python: The server that forks the processes of cells on this machine; None for no server.

    Returns:
        One result per cell, in the order of the grid's cells.

    Raises:
        UserError: If the directory cannot be used; no cell has run then.
        KeyboardInterrupt: After a Ctrl-C, with a message that says how many results exist.
    """
    grid, directory = plan.grid, plan.directory
    with (
        claimed(directory, grid.config, grid.cells) as lock,
        contextlib.nullcontext(predict()) as predicted,  # after the lock, before any output
        CellsDone(console, grid, slots=len(place.slots if place else plan.devices)) as progress,
    ):
        results = [Result(cell, "pending") if fresh else result_of(cell) for cell in grid.cells]
        if kept := keep_tables(directory, grid):
            progress.note(f"the tables of the earlier comparison are now {kept}")
        _announce(results, progress, fresh=fresh)
        write_tables(directory, grid, results, predicted)

        def starting(cell: Cell) -> None:
            prepare(cell, fresh=fresh)
            progress.started(cell)

        def ended(result: Result) -> None:
            results[grid.cells.index(result.cell)] = result
            # If the disk is full now, later cells and the last write of the tables may find space.
            with contextlib.suppress(OSError):
                write_tables(directory, grid, results, predicted)
            progress.ended(result)

        try:
            run_all(
                [result.cell for result in results if result.status == "pending"],
                place
                or ThisMachine(
                    plan.devices,
                    command,
                    keep_open=[lock],
                    time_limit=plan.time_limit,
                    python=python,
                ),
                starting=starting,
                ended=ended,
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_what_is_left(plan, results)) from None
        try:
            write_tables(directory, grid, results, predicted)
        except OSError as error:
            progress.warn(f"the tables in {directory} are not up to date: {error}")
    return results


def _announce(results: Sequence[Result], progress: CellsDone, *, fresh: bool) -> None:
    for result in results:
        if result.status != "pending":
            progress.kept(result, different_versions(result))
        elif not fresh and (changes := changed_since(result.cell)):
            progress.changed(result.cell, changes)


def _what_is_left(plan: Plan, results: Sequence[Result]) -> str:
    done = sum(result.status != "pending" for result in results)
    return (
        f"interrupted; {done} of {len(results)} runs have a result in {str(plan.directory)!r}; "
        "the same command continues from there"
    )
