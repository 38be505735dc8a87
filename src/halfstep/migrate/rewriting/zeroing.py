"""When gradients are dropped: on `halfstep.Engine`, whose step drops those that it stepped with.

A `zero_grad` that always comes right behind a step is not needed any more. One that some step goes
without lets gradients live on. The engine's step would drop them, and what a GradScaler has
unscaled takes no scaled gradients any more: such a program is left.
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
    """Write the `zero_grad`s that are still needed, and note steps that none belongs to."""
    keeping(about, edits, DROPPED)
    for move in about.zero_grads:
        _zero(about, target, edits, move)


def keeping(about: Understanding, edits: Edits, but: str) -> None:
    """Note steps that no `zero_grad` belongs to, and leave programs that keep gradients for more.

    Args:
        about: What the program does; it takes reasons to leave it.
        edits: Takes the notes.
        but: What becomes of gradients behind a step.
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
    """Tell whether something is zeroed beside a step, as the model by a name of its own."""
    source = about.program.source
    return any(
        source.function(call) is source.function(step.statement)
        and about.windows.apart(step.statement, source.statement(call)) is not None
        for call in about.program.zero_grads
    )


def _outlive(about: Understanding, step: Move, but: str) -> None:
    """Leave a program in which a step may follow another without a `zero_grad` between them."""
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
        return  # it primes the optimizer, before the first backward
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
    """Return what repeats a step: a loop, but none over several optimizers, or a function."""
    source = about.program.source
    loop = source.loop(step.statement)
    while isinstance(loop, ast.For) and paths(loop.target) & paths(step.call.func):
        loop = source.loop(loop)
    return loop or source.function(step.statement)


def _losses(about: Understanding, around: Loop | Function) -> list[ScaledLoss]:
    """Return the scaled losses within a loop or function, but for those in functions in it."""
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
    """Tell whether a `zero_grad` runs as often as a step or a backward does.

    Where zeroing and the step stand under a test each, the tests are taken to belong together, as
    in `if i % 4 == 0: zero_grad()` and `if i % 4 == 3: step()`.
    """
    pair = about.windows.apart(zero, other)
    if pair is None:
        return False
    tested = isinstance(pair[0], ast.If | ast.Try) and pair[0] is not zero
    return not tested or (isinstance(pair[1], ast.If) and not about.program.losses_in(pair[1]))


def _zero(about: Understanding, target: EngineTarget, edits: Edits, move: Move) -> None:
    """Write a `zero_grad`, unless a step before it has done that already."""
    source = about.program.source
    function = source.function(move.statement)
    for each in about.trained:
        if each.function is function and move.statement.lineno < each.statement.lineno:
            return  # there is no engine yet
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
    """Return whose gradients a `zero_grad` drops, as a list; "" for all, None if not known."""
    if move.loop is not None:
        return "" if move.loop in about.program.optimizers else None
    if move.owner not in about.program.models or move.owner in about.program.optimizers:
        return f"[{move.owner}]"
    for each in about.trained:
        if move.owner in each.models and len(each.models) == len(each.optimizers):
            return f"[{each.optimizers[each.models.index(move.owner)]}]"
    return None


def _done(about: Understanding, move: Move) -> bool:
    """Tell whether a `zero_grad` has nothing to drop: a step or another one is before it.

    Only what stands in the same suite counts: before the head of a loop or of a function may come
    an evaluation that attacks the model, and leaves gradients in it.
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
    """Tell whether a statement surely runs no backward: it calls methods, if anything."""
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
