"""Finds the calls of a rewritten program that should be under autocast and are not.

This check knows nothing of the code that puts statements under autocast. It reads the rewritten
program: each call that runs a model or computes with its outputs, and whose result reaches a scaled
loss, must be under autocast.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import Imports, all_names, bound
from halfstep.migrate.program.program import Program
from halfstep.migrate.program.source import inner
from halfstep.migrate.verification.flow import Flow

if TYPE_CHECKING:
    from halfstep.migrate.program.source import Source

UNCOVERED = (
    "the result of `{}` reaches a scaled loss, but is not computed under autocast; move the call "
    "into a `{}`"
)


def uncovered(source: Source, models: set[str], scaler: str) -> list[ast.Call]:
    """Return the calls outside of autocast whose results reach a scaled loss.

    A call before the engine or scaler is created is left out: Apex was not initialized either.

    Args:
        source: The rewritten program.
        models: The expressions that refer to models which amp handled.
        scaler: The expression that refers to the engine or scaler.
    """
    program = Program(source, Imports(source), all_names(source.tree), models=models)
    found = Flow(program, scaler).expressions.reaching
    made = [
        each
        for each in inner(source.tree)
        if isinstance(each, ast.Assign) and scaler in bound(each)
    ]

    def follows(call: ast.Call) -> bool:
        lines = [each.lineno for each in made if source.function(each) is source.function(call)]
        return not lines or min(lines) < call.lineno

    return sorted(filter(follows, found), key=lambda call: (call.lineno, call.col_offset))
