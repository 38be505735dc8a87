"""Run the missing cells of a comparison, one after another, and keep its tables up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.compare.directory import changed_since, claimed, prepare, result_of, write_tables
from halfstep.compare.progress import Progress
from halfstep.compare.results import Result
from halfstep.compare.runner import Command, run_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from halfstep.compare.plan import Plan


def compare(plan: Plan, command: Command, console: Console, *, fresh: bool = False) -> list[Result]:
    """Run the cells that have no result yet.

    A cell that ends badly is a result that says so, and the next one runs.

    Args:
        plan: What is compared, and where.
        command: Gives the program and arguments that run a cell.
        console: Is told how it goes.
        fresh: Whether to run the cells again that have a result.

    Returns:
        One result per cell, in the order of the grid's cells.

    Raises:
        UserError: If the directory cannot be had; nothing was run then.
        KeyboardInterrupt: With a message that says what is left, after a Ctrl-C.
    """
    grid, directory = plan.grid, plan.directory
    with (
        claimed(directory, grid.config) as lock,
        Progress(console, grid, plan.epochs) as progress,
    ):
        results = [Result(cell, "pending") if fresh else result_of(cell) for cell in grid.cells]
        _announce(results, progress, fresh=fresh)
        write_tables(directory, grid, results)
        try:
            for index, cell in enumerate(grid.cells):
                if results[index].status != "pending":
                    continue
                prepare(cell)
                progress.started(cell)
                results[index] = run_cell(cell, command, keep_open=[lock])
                write_tables(directory, grid, results)
                progress.ended(results[index])
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_what_is_left(plan, results)) from None
    return results


def _announce(results: Sequence[Result], progress: Progress, *, fresh: bool) -> None:
    for result in results:
        if result.status != "pending":
            progress.kept(result)
        elif not fresh and (changes := changed_since(result.cell)):
            progress.changed(result.cell, changes)


def _what_is_left(plan: Plan, results: Sequence[Result]) -> str:
    done = sum(result.status != "pending" for result in results)
    return (
        f"interrupted; {done} of {len(results)} cells have a result in {str(plan.directory)!r}; "
        "the same command goes on from there"
    )
