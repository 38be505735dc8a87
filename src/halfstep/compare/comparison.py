"""Runs the missing cells of a comparison, and keeps its tables up to date."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.compare.cells.directory import changed_since, claimed, prepare, result_of
from halfstep.compare.cells.progress import CellsDone
from halfstep.compare.cells.results import Result
from halfstep.compare.cells.schedule import ThisMachine, run_all
from halfstep.compare.cells.versions import different_versions
from halfstep.compare.output.tables import judged_before, keep_tables, write_tables
from halfstep.compare.rows.predicted import nothing
from halfstep.compare.rows.rows import rows_by_arm
from halfstep.compare.rows.verdict import NOT_SETTLED, verdicts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

    from halfstep.compare.cells.runner import Command
    from halfstep.compare.cells.schedule import Place
    from halfstep.compare.cells.warm import Server
    from halfstep.compare.plan.grid import Cell, Grid, Plan
    from halfstep.compare.rows.predicted import Predict, Prediction


def compare(
    plan: Plan,
    command: Command | None,
    console: Console,
    *,
    fresh: bool = False,
    place: Place | None = None,
    predict: Predict = nothing,
    python: Server | None = None,
) -> tuple[Grid, list[Result]]:
    """Run the cells that have no result yet, look by look.

    After each planned look, rows that are settled get no further seeds. The failure of a cell is
    recorded as its result, and the other cells still run.

    Args:
        plan: The cells, the directory and the devices.
        command: Returns the program and arguments that run a cell; None with a place.
        console: Where progress is printed.
        fresh: Whether to repeat the cells that already have a result.
        place: Where the cells run; default: on the plan's devices of this machine.
        predict: Returns the predicted cost of the rows on GPUs that this machine lacks.
        python: The server that forks the processes of cells on this machine; None for no server.

    Returns:
        The grid of the cells up to the last look that was needed, and one result for each of them.

    Raises:
        UserError: If the directory cannot be used; no cell has run then.
        KeyboardInterrupt: After a Ctrl-C, with a message that says how many results exist.
    """
    directory = plan.directory
    with (
        claimed(directory, plan.grid.config, plan.grid.cells) as lock,
        contextlib.nullcontext(predict()) as predicted,  # after the lock, before any output
        CellsDone(
            console, plan.grid, slots=len(place.slots if place else plan.devices)
        ) as progress,
        contextlib.ExitStack() as ending,
    ):
        grid = replace(plan.grid, plans=judged_before(directory, plan.grid))
        if kept := keep_tables(directory, grid):
            progress.note(f"the tables of the earlier comparison are now {kept}")
        if place is None:
            assert command is not None
            place = ThisMachine(
                plan.devices, command, keep_open=[lock], time_limit=plan.time_limit, python=python
            )
            ending.callback(place.close)
        results: list[Result] = []
        for look in _looks(grid, results):
            known = [Result(cell, "pending") if fresh else result_of(cell) for cell in look]
            _announce(known, progress, fresh=fresh)
            results += known
            shown = grid.of([result.cell for result in results])
            write_tables(directory, shown, results, predicted)
            try:
                _run(shown, results, place, progress, directory, predicted, fresh=fresh)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(_what_is_left(plan, results)) from None
        try:
            write_tables(directory, shown, results, predicted)
        except OSError as error:
            progress.warn(f"the tables in {directory} are not up to date: {error}")
    return shown, results


def _looks(grid: Grid, results: Sequence[Result]) -> Iterator[list[Cell]]:
    """Yield the cells of each look, as long as rows are not settled by the `results` before it."""
    number = {seed: place for place, seed in enumerate(grid.seeds)}
    needed, before = set(grid.arms), 0
    for look in grid.looks:
        yield [
            cell for cell in grid.cells if before <= number[cell.seed] < look and cell.arm in needed
        ]
        shown = grid.of([result.cell for result in results])
        rows = rows_by_arm(shown, results)
        settled = {
            verdict.label for verdict in verdicts(shown, rows) if verdict.answer != NOT_SETTLED
        }
        left = {arm for arm in needed if arm.label not in settled and grid.baseline(arm) != arm}
        needed, before = left | {grid.baseline(arm) for arm in left}, look
        if not left:
            return


def _run(
    grid: Grid,
    results: list[Result],
    place: Place,
    progress: CellsDone,
    directory: Path,
    predicted: Sequence[Prediction],
    *,
    fresh: bool,
) -> None:
    """Run the pending cells, and replace their results."""

    def starting(cell: Cell) -> None:
        prepare(cell, fresh=fresh)
        progress.started(cell)

    def ended(result: Result) -> None:
        results[grid.cells.index(result.cell)] = result
        # If the disk is full now, later cells and the last write of the tables may find space.
        with contextlib.suppress(OSError):
            write_tables(directory, grid, results, predicted)
        progress.ended(result)

    pending = [result.cell for result in results if result.status == "pending"]
    run_all(pending, place, starting=starting, ended=ended)


def _announce(results: Sequence[Result], progress: CellsDone, *, fresh: bool) -> None:
    for result in results:
        if result.status != "pending":
            progress.kept(result, different_versions(result))
        elif not fresh and (changes := changed_since(result.cell)):
            progress.changed(result.cell, changes)


def _what_is_left(plan: Plan, results: Sequence[Result]) -> str:
    done, most = sum(result.status != "pending" for result in results), len(plan.grid.cells)
    return (
        f"interrupted; {done} of {most} runs have a result in {str(plan.directory)!r}; "
        "the same command continues from there"
    )
