"""Statements that move or go away because of their neighbours in a suite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from halfstep.migrate.layout import leading, lines
from halfstep.migrate.names import calls, code
from halfstep.migrate.program import MASTER_PARAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.migrate.program import Program


@dataclass
class Moves:
    """What moves in a suite.

    Attributes:
        steps_before: Optimizers that step before the statement at a place, whose norm it wants.
        dropped: Places of statements that go away.
    """

    steps_before: dict[int, str] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)


def find_moves(program: Program, body: Sequence[cst.BaseStatement], *, norms: bool) -> Moves:
    """Find what moves in a suite.

    Args:
        program: The facts.
        body: The statements of the suite.
        norms: Whether the norm of the gradients is known after the step only, as with the engine.
    """
    moves = Moves()
    steps = [
        place
        for place, each in enumerate(body)
        if program.method_call(each, "step") in program.optimizers
    ]
    for place in steps:
        zeroed = place > 0 and program.method_call(body[place - 1], "zero_grad") is not None
        if zeroed and not any(program.holds_scale_loss(each) for each in body[:place]):
            # A step without gradients, by which programs made Apex allocate its masters.
            moves.dropped |= {place - 1, place}
    for place, each in enumerate(body) if norms else ():
        clip = program.clip_of(each)
        if clip is None or not clip.value_used:
            continue
        step = next((s for s in steps if s > place and s not in moves.dropped), None)
        if step is not None and _may_pass(program, body[place + 1 : step]):
            moves.steps_before[place] = program.method_call(body[step], "step") or ""
            moves.dropped.add(step)
    return moves


def _may_pass(program: Program, between: Sequence[cst.BaseStatement]) -> bool:
    """Tell whether a step may go before these statements."""
    text = "\n".join(code(each) for each in between)
    return ".grad" not in text and not any(name in text for name in program.optimizers)


def with_update(scaler: str, after: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """Update a GradScaler after the last of its steps in a suite.

    Args:
        scaler: Its name.
        after: The statements of the suite, rewritten.
    """
    places = [
        place
        for place, each in enumerate(after)
        if isinstance(each, cst.SimpleStatementLine) and code(each).startswith(f"{scaler}.step(")
    ]
    if not places:
        return list(after)
    end = places[-1] + 1
    return [*after[:end], *lines(f"{scaler}.update()"), *after[end:]]


def with_unscale(
    program: Program, scaler: str, old: cst.BaseStatement, new: list[cst.BaseStatement]
) -> list[cst.BaseStatement]:
    """Unscale gradients before a simple statement that asks for the master parameters."""
    if not isinstance(old, cst.SimpleStatementLine) or not new:
        return new
    asked = [
        code(call.args[0].value)
        for call in calls(old)
        if program.imports.qualified(call.func) == MASTER_PARAMS and call.args
    ]
    if not asked:
        return new
    unscale = lines(f"{scaler}.unscale_({asked[0]})")[0]
    first = new[0].with_changes(leading_lines=())
    return [unscale.with_changes(leading_lines=leading(new[0])), first, *new[1:]]
