"""Run the missing cells of a comparison, and keep its tables up to date."""

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

    A cell that ends badly is a result that says so, and the others run.

    Args:
        plan: What is compared, and where.
        command: Gives the program and arguments that run a cell.
        console: Is told how it goes.
        fresh: Whether to run the cells again that have a result.
        place: Where cells run; the plan's devices of this machine by default.
        predict: Gives what rows would cost on GPUs that are not here.
        python: Forks cells of this machine.

    Returns:
        One result per cell, in the order of the grid's cells.

    Raises:
        UserError: If the directory cannot be had; nothing was run then.
        KeyboardInterrupt: With a message that says what is left, after a Ctrl-C.
    """
    grid, directory = plan.grid, plan.directory
    with (
        claimed(directory, grid.config, grid.cells) as lock,
        contextlib.nullcontext(predict()) as predicted,  # once it is claimed, before it is told of
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
            # A cell that filled the disk is one row; the next ones may find room, as may the
            # tables in the end.
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
