"""Which statements belong under autocast: from the first call of a model up to the loss.

Apex's O1 changed torch's functions everywhere. In the rewritten program each forward pass, with the
loss that it ends in, stands in a `with` block of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from halfstep.migrate.names import argument, assigned_names, calls, used_names
from halfstep.migrate.program import SCALE_LOSS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.migrate.program import Program


def autocast_regions(program: Program, body: Sequence[cst.BaseStatement]) -> list[tuple[int, int]]:
    """Find the regions of a suite.

    Args:
        program: The facts.
        body: The statements of the suite.

    Returns:
        First and last place of each region, in order.
    """
    regions: list[tuple[int, int]] = []
    start: int | None = None
    after = 0
    trains = any(ends_in_backward(program, statement) for statement in body)
    for place, statement in enumerate(body):
        if ends_in_backward(program, statement):
            regions += _up_to_loss(program, body, after, start, place)
            start, after = None, place + 1
        elif start is None and _runs(program, statement, deep=trains):
            start = place
    if start is not None:
        regions += _evaluations(program, body, start)
    return regions


def ends_in_backward(program: Program, statement: cst.BaseStatement) -> bool:
    """Tell whether a statement does the backward of a forward pass that comes before it."""
    if program.is_scale_loss(statement):
        return True
    return (
        isinstance(statement, cst.If)
        and program.holds_scale_loss(statement)
        and not program.runs_model(statement)
        and not _loops(statement)
    )


def _loops(statement: cst.CSTNode) -> bool:
    found = False

    class Look(cst.CSTVisitor):
        def visit_For(self, node: cst.For) -> None:  # noqa: N802  (libcst's)
            nonlocal found
            found = found or bool(calls(node.body))

        def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802
            nonlocal found
            found = found or bool(node)

    statement.visit(Look())
    return found


def _runs(program: Program, statement: cst.BaseStatement, *, deep: bool) -> bool:
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return False
    if not deep and not isinstance(statement, cst.SimpleStatementLine):
        return False
    return program.runs_model(statement) and not program.holds_scale_loss(statement)


def _up_to_loss(
    program: Program,
    body: Sequence[cst.BaseStatement],
    after: int,
    start: int | None,
    backward: int,
) -> list[tuple[int, int]]:
    needed = _loss_names(program, body[backward])
    if start is None:
        # The model is called in a function elsewhere, or under another name.
        making = [p for p in range(after, backward) if assigned_names(body[p]) & needed]
        if not making:
            return []
        inputs = used_names(body[making[0]])
        start = making[0]
        for place in range(making[0] - 1, after - 1, -1):
            simple = isinstance(body[place], cst.SimpleStatementLine)
            if simple and calls(body[place]) and assigned_names(body[place]) & inputs:
                start = place
                break
    ends = [p for p in range(start, backward) if assigned_names(body[p]) & needed]
    return [(start, ends[-1] if ends else backward - 1)]


def _loss_names(program: Program, statement: cst.BaseStatement) -> set[str]:
    found: set[str] = set()
    for call in calls(statement):
        loss = argument(call, "loss", 0)
        if program.imports.qualified(call.func) == SCALE_LOSS and loss is not None:
            found |= used_names(loss)
    return found


def _evaluations(
    program: Program, body: Sequence[cst.BaseStatement], start: int
) -> list[tuple[int, int]]:
    """Return regions without a backward: a call of a model, and what is assigned from it next."""
    regions: list[tuple[int, int]] = []
    place = start
    while place < len(body):
        if _runs(program, body[place], deep=False):
            end, made = place, assigned_names(body[place])
            while end + 1 < len(body) and _goes_on(body[end + 1], made):
                end += 1
                made |= assigned_names(body[end])
            regions.append((place, end))
            place = end
        place += 1
    return regions


def _goes_on(statement: cst.BaseStatement, made: set[str]) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Assign)
        and bool(used_names(statement) & made)
    )
