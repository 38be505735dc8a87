"""The calls of `zero_grad`: which are still needed, and which programs keep gradients after a step.

The engine's step clears the gradients that it used, so a `zero_grad` right after a step is removed.
If some step has no `zero_grad` after it, its gradients are kept for the next one. Neither target
supports that: the engine's step would clear them, and scaled gradients cannot be added to gradients
that a GradScaler has unscaled. Such a program is not rewritten.
"""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import calls, last_name, paths
from halfstep.migrate.program.source import Function, inner

if TYPE_CHECKING:
    from halfstep.migrate.analysis.steps import Move
    from halfstep.migrate.analysis.understanding import Understanding
    from halfstep.migrate.program.program import ScaledLoss
    from halfstep.migrate.program.render import Edits
    from halfstep.migrate.program.source import Loop
    from halfstep.migrate.rewriting.targets import EngineTarget

NOT_ZEROED = "gradients of {} are never zeroed in this file, {}"
OUTLIVE = "gradients are not always zeroed after this step, {}"
DROPPED = "but the engine's step clears them"
UNSCALED = "but scaled gradients cannot be added to gradients that a GradScaler has unscaled"


def zeroing(about: Understanding, target: EngineTarget, edits: Edits) -> None:
    """Rewrite each `zero_grad` for the engine, and check that each step has one."""
    keeping(about, edits, DROPPED)
    for move in about.zero_grads:
        _zero(about, target, edits, move)


def keeping(about: Understanding, edits: Edits, but: str) -> None:
    """Note steps without any `zero_grad`, and refuse programs that keep gradients after a step.

    Args:
        about: The analysis of the program; reasons not to rewrite are added to it.
        edits: The changes to the program; notes are added here.
        but: The end of the note: what the target does with gradients after a step.
    """
    if _zeroed_by_hand(about):
        return
    source = about.program.source
    for move in about.steps:
        if about.zero_grads:
            _outlive(about, move, but)
        elif not _zeroed_beside(about, move) and (
            source.loop(move.statement) or source.function(move.statement)
        ):
            edits.notes[move.statement].append(NOT_ZEROED.format(move.owner, but))


def models(about: Understanding) -> int:
    """Return how many models amp handles."""
    return max((len(each.models) for each in about.trained), default=1)


def _zeroed_by_hand(about: Understanding) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Store)
        for node in inner(about.program.source.tree)
    )


def _zeroed_beside(about: Understanding, step: Move) -> bool:
    """Tell whether any object is zeroed near a step, for example a model under another name."""
    source = about.program.source
    return any(
        source.function(call) is source.function(step.statement)
        and about.windows.apart(step.statement, source.statement(call)) is not None
        for call in about.program.zero_grads
    )


def _outlive(about: Understanding, step: Move, but: str) -> None:
    """Refuse a program in which a step may follow another without a `zero_grad` between them."""
    source, at = about.program.source, step.statement
    turn = _turn(about, step)
    if turn is None:
        return
    same = [move.statement for move in about.zero_grads if _same(about, step, move)]
    zeroed = [each for each in same if turn in source.above(each)]
    elsewhere = any(source.function(each) is not source.function(at) for each in same)
    if not same or (elsewhere and not zeroed):
        return
    losses = [each.statement for each in _losses(about, turn)]
    if all(each.lineno > at.lineno for each in losses) and source.loop(at) is None:
        return  # a step before training, which only creates the optimizer's state
    regular = {zero for zero in zeroed if any(_with(about, zero, each) for each in (at, *losses))}
    steps = {
        each.statement
        for each in about.steps
        if each.owner == step.owner and turn in source.above(each.statement)
    }
    reached = [each for each in steps | regular if about.windows.apart(at, each) or each is at]
    reached.sort(key=lambda each: (each.lineno <= at.lineno, each.lineno))
    if reached[0] in steps:
        about.leave(at, OUTLIVE.format(but))


def _turn(about: Understanding, step: Move) -> Loop | Function | None:
    """Return the loop or function that repeats a step; a loop over optimizers does not count."""
    source = about.program.source
    loop = source.loop(step.statement)
    while isinstance(loop, ast.For) and paths(loop.target) & paths(step.call.func):
        loop = source.loop(loop)
    return loop or source.function(step.statement)


def _losses(about: Understanding, around: Loop | Function) -> list[ScaledLoss]:
    """Return the scaled losses in a loop or function, without those in nested functions."""
    source = about.program.source
    own = around if isinstance(around, Function) else source.function(around)
    return [
        loss
        for loss in about.program.losses
        if about.live(loss)
        and source.function(loss.statement) is own
        and around in source.above(loss.statement)
    ]


def _with(about: Understanding, zero: ast.stmt, other: ast.stmt) -> bool:
    """Tell whether a `zero_grad` runs as often as a step or a backward.

    If both are under a test, the tests are assumed to belong together, as in
    `if i % 4 == 0: zero_grad()` and `if i % 4 == 3: step()`.
    """
    pair = about.windows.apart(zero, other)
    if pair is None:
        return False
    tested = isinstance(pair[0], ast.If | ast.Try) and pair[0] is not zero
    return not tested or (isinstance(pair[1], ast.If) and not about.program.losses_in(pair[1]))


def _zero(about: Understanding, target: EngineTarget, edits: Edits, move: Move) -> None:
    """Rewrite a `zero_grad`; remove it if the gradients have been cleared already."""
    source = about.program.source
    function = source.function(move.statement)
    for each in about.trained:
        if each.function is function and move.statement.lineno < each.statement.lineno:
            return  # the engine does not exist yet
    if function not in {
        *about.program.training,
        *(source.function(step.statement) for step in about.steps),
    }:
        return
    only = ""
    if about.program.several_optimizers:
        optimizer = _optimizer_of(about, move)
        if optimizer is None:
            about.leave(move.statement, f"migrate does not know whose gradients {move.owner} has")
            return
        only = f"optimizers={optimizer}" if optimizer else ""
    elif move.owner in about.program.models and models(about) > 1 and not _done(about, move):
        about.leave(move.statement, "an optimizer has the gradients of more than this model")
        return
    written = [] if _done(about, move) else [f"{target.object}.zero_grad({only})"]
    edits.replaced[move.statement] = [*written]


def _optimizer_of(about: Understanding, move: Move) -> str | None:
    """Return the optimizer whose gradients a `zero_grad` clears, as the source of a list.

    Return "" for all optimizers, and None if the optimizer is not known.
    """
    if move.loop is not None:
        return "" if move.loop in about.program.optimizers else None
    if move.owner not in about.program.models or move.owner in about.program.optimizers:
        return f"[{move.owner}]"
    for each in about.trained:
        if move.owner in each.models and len(each.models) == len(each.optimizers):
            return f"[{each.optimizers[each.models.index(move.owner)]}]"
    return None


def _done(about: Understanding, move: Move) -> bool:
    """Tell whether a `zero_grad` has nothing to clear after a step or another `zero_grad`.

    Only statements before it in the same suite count. Before a loop or function begins, other code
    may have left gradients, for example an evaluation with adversarial attacks.
    """
    source, windows = about.program.source, about.windows
    function = source.function(move.statement)
    steps = {
        step.statement
        for step in about.steps
        if source.function(step.statement) is function and _same(about, step, move)
    }
    steps |= {
        other.statement
        for other in about.zero_grads
        if _optimizer_of(about, other) in {"", _optimizer_of(about, move)}
        or not about.program.several_optimizers
    } - {move.statement}
    suite = about.forwards.flat(windows.suite(move.statement))
    for before in reversed(suite[: suite.index(move.statement)]):
        if before in steps:
            return True
        if not _leaves_gradients_alone(about, before):
            return False
    return False


def _leaves_gradients_alone(about: Understanding, statement: ast.stmt) -> bool:
    """Tell whether a statement certainly runs no backward: it calls only methods and builtins."""
    own = {
        each.name
        for each in inner(about.program.source.tree)
        if isinstance(each, Function)
        and any(last_name(call.func) == "backward" for call in calls(each))
    }
    return not about.program.losses_in(statement) and all(
        isinstance(call.func, ast.Attribute) and last_name(call.func) not in {"backward", *own}
        for call in calls(statement)
        if last_name(call.func) not in dir(builtins)
    )


def _same(about: Understanding, step: Move, move: Move) -> bool:
    if not about.program.several_optimizers or step.loop is not None:
        return True
    optimizer = _optimizer_of(about, move)
    return optimizer in {"", f"[{step.owner}]"}
