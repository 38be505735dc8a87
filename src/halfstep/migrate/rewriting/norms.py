"""Norms of gradients that a program computes after every backward and reads after the step.

The engine or scaler provides the norm once per step. If a program assigns the norm to a name after
every backward of an accumulation window, the rewritten program assigns it at the step, and assigns
0 before the first step.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import used_names
from halfstep.migrate.program.source import inner

if TYPE_CHECKING:
    from halfstep.migrate.analysis.understanding import Understanding
    from halfstep.migrate.analysis.windows import Touch
    from halfstep.migrate.program.render import Edits

NOTE = (
    "with Apex, this was the norm after every backward; `{}` is the norm of the last step, and 0 "
    "before the first step"
)


def name_of(about: Understanding, touch: Touch) -> str | None:
    """Return the name that the norm is assigned to, or None if it is read before the step."""
    statement, step = touch.statement, touch.step
    if touch.scaled or step is None or touch.head is None:
        return None
    if not isinstance(statement, ast.Assign) or statement.value is not touch.call:
        return None
    target = statement.targets[0]
    source = about.program.source
    if not isinstance(target, ast.Name) or source.loop(statement) is None:
        return None
    if source.loop(statement) is not source.loop(step.statement):
        return None
    suite = about.windows.suite(touch.head)
    between = [
        node
        for each in suite
        for node in inner(each)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if statement.lineno < node.lineno <= step.statement.lineno
    ]
    return None if any(node.id == target.id for node in between) else target.id


def default(about: Understanding, touch: Touch, name: str, zero: str, edits: Edits) -> None:
    """Assign `zero` to a norm before the loop, because it may be read before the first step."""
    source = about.program.source
    loop = source.loop(touch.statement)
    assert loop is not None
    suite = source.suite(loop)
    before = [
        node
        for each in suite[: suite.index(loop)]
        for node in inner(each)
        if isinstance(node, ast.Assign)
    ]
    line = f"{name} = {zero}"
    there = any(name in used_names(target) for each in before for target in each.targets)
    if not there and line not in edits.before[loop]:
        edits.before[loop].append(line)
