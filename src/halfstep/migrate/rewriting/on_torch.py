"""How gradients are unscaled and clipped, and optimizers stepped, with a `torch.amp.GradScaler`.

A GradScaler unscales the gradients of an optimizer once per step. The rewritten program unscales
before the first statement that reads them; without such a statement, the step unscales.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.source import inner
from halfstep.migrate.rewriting import norms
from halfstep.migrate.rewriting.targets import MASTERS
from halfstep.migrate.rewriting.zeroing import UNSCALED, keeping

if TYPE_CHECKING:
    from halfstep.migrate.analysis.steps import Move
    from halfstep.migrate.analysis.understanding import Understanding
    from halfstep.migrate.analysis.windows import Touch
    from halfstep.migrate.program.render import Edits
    from halfstep.migrate.rewriting.targets import TorchTarget

TWICE = "gradients are read after every backward, but a GradScaler unscales them only once per step"
GIVEN_TWICE = (
    "`{}` may read gradients after every backward, but a GradScaler unscales them only once per "
    "step"
)
NO_STEP = "gradients are read here, but no step follows in this function"
PER_MICRO_BATCH = (
    "with Apex, this clipped after every backward; now it unscales and clips once per step"
)
SCALED_CLIP = "with Apex, this clipped gradients that were still scaled; now it clips unscaled ones"
HALF_CLIP = (
    "under O2, this clipped fp16 gradients that no step used; now it clips those that the step uses"
)


def on_torch(about: Understanding, target: TorchTarget, edits: Edits) -> None:
    """Rewrite clips, reads of gradients and steps for a GradScaler."""
    unscaled: dict[ast.stmt, int] = {}
    for touch in about.windows.touches:
        _unscale(about, target, edits, touch, unscaled)
    for move in about.steps:
        _step(target, edits, move)
    _update(about, target, edits)
    keeping(about, edits, UNSCALED)


def _unscale(
    about: Understanding,
    target: TorchTarget,
    edits: Edits,
    touch: Touch,
    unscaled: dict[ast.stmt, int],
) -> None:
    """Unscale before a statement that touches gradients, or add the reason not to rewrite."""
    clips = touch.setting in {"clip_norm", "clip_value"}
    if touch.scaled and not clips:
        return  # inside scale_loss: with Apex, the gradients were scaled here too
    step = touch.step
    if step is None:
        if _is_scaled(about, touch):
            about.leave(touch.statement, NO_STEP)
        return
    next_loss = _next_loss(about, touch.statement)
    if not touch.scaled and next_loss is not None and next_loss < step.statement.lineno:
        return  # gradients of the previous step, which the scaler has already unscaled
    assert touch.head is not None
    steps = _steps_of(about, touch)
    lines = [_unscaling(target, each) for each in steps]
    if touch.bound_to_place:
        about.leave(touch.statement, touch.bound_to_place)
        return
    if touch.moved or touch.scaled:
        name = norms.name_of(about, touch) if touch.moved else None
        if name is not None:
            norms.default(about, touch, name, "0.0", edits)
            edits.notes[step.statement].append(norms.NOTE.format(name))
        if name is None and (not clips or touch.value_used):
            about.leave(touch.statement, GIVEN_TWICE.format(touch.given) if touch.given else TWICE)
        else:
            _move(about, edits, touch, lines)
        return
    for each in steps:
        _unscale_here(about, target, edits, touch, each, unscaled)


def _unscale_here(
    about: Understanding,
    target: TorchTarget,
    edits: Edits,
    touch: Touch,
    step: Move,
    unscaled: dict[ast.stmt, int],
) -> None:
    """Unscale before a statement that touches gradients, once for each step."""
    assert touch.head is not None
    lines = [_unscaling(target, step)]
    clips = touch.setting in {"clip_norm", "clip_value"}
    inside = [
        each
        for each in about.windows.way(touch.statement)
        if each.lineno >= touch.head.lineno and not about.program.losses_in(each)
    ]
    head = inside[0] if inside else touch.head
    line = head.lineno
    if unscaled.get(step.statement, line) >= line or head is not touch.head:
        unscaled[step.statement] = line
        if not any(each in edits.before[head] for each in lines):
            edits.before[head][:0] = lines
    for jump in _jumps(about, touch.head, step.statement):
        if not edits.before[jump]:
            edits.before[jump].append(f"{target.object}.update()")
    test = about.branches.only_with_amp.get(touch.statement)
    if test is not None:
        edits.replaced[touch.statement] = [f"if {test}:\n    {_written(about, touch)}"]
    plain = touch.statement in about.branches.without_amp
    if clips and touch.of_model and about.may_have_masters and not plain:
        edits.notes[touch.statement].append(HALF_CLIP)


def _steps_of(about: Understanding, touch: Touch) -> list[Move]:
    """Return the steps that use the touched gradients, in order.

    These are the step of one optimizer or, if the optimizer is not known, all steps before the
    next loss.
    """
    first = touch.step
    assert first is not None
    if not about.program.several_optimizers or first.loop is not None:
        return [first]
    at, function = touch.statement.lineno, about.program.source.function(touch.statement)
    end = _next_loss(about, first.statement)
    following = {
        each.owner: each
        for each in reversed(about.steps)
        if at < each.statement.lineno
        and (end is None or each.statement.lineno < end)
        and about.program.source.function(each.statement) is function
        and about.windows.apart(touch.statement, each.statement) is not None
    }
    own = _optimizer_of(about, touch)
    return [following[own]] if own in following else [*following.values()][::-1]


def _next_loss(about: Understanding, statement: ast.stmt) -> int | None:
    """Return the line (from 1) of the next scaled loss that may follow a statement, or None."""
    function = about.program.source.function(statement)
    lines = [
        each.statement.lineno
        for each in about.program.losses
        if about.live(each)
        and each.statement.lineno > statement.lineno
        and about.program.source.function(each.statement) is function
        and about.windows.apart(statement, each.statement) is not None
    ]
    return min(lines, default=None)


def _optimizer_of(about: Understanding, touch: Touch) -> str | None:
    """Return the source of the optimizer whose gradients are touched, or None if not known."""
    if not touch.of_model:
        return touch.whose or None
    for each in about.trained:
        if touch.whose in each.models and len(each.models) == len(each.optimizers):
            return each.optimizers[each.models.index(touch.whose)]
    return None


def _unscaling(target: TorchTarget, step: Move) -> str:
    line = f"{target.object}.unscale_({step.owner})"
    return line if step.loop is None else f"for {step.owner} in {step.loop}:\n    {line}"


def _jumps(about: Understanding, head: ast.stmt, step: ast.stmt) -> list[ast.stmt]:
    """Return the statements that skip a step after its gradients have been unscaled."""
    source = about.program.source
    loop = source.loop(step)
    return [
        node
        for each in about.windows.suite(head)
        if head.lineno <= each.lineno < step.lineno
        for node in inner(each, functions=False)
        if isinstance(node, ast.Return)
        or (isinstance(node, ast.Continue | ast.Break) and source.loop(node) is loop)
    ]


def _is_scaled(about: Understanding, touch: Touch) -> bool:
    """Tell whether the touched gradients are scaled: a backward follows the previous step."""
    source, at = about.program.source, touch.statement.lineno
    function = source.function(touch.statement)
    before = [
        each.statement.lineno
        for each in about.program.losses
        if source.function(each.statement) is function and each.statement.lineno < at
    ]
    stepped = [each.statement.lineno for each in about.steps if each.statement.lineno < at]
    return bool(before) and max(stepped, default=0) < max(before)


def _move(about: Understanding, edits: Edits, touch: Touch, unscale: list[str]) -> None:
    """Move a clip or norm from its place after every backward to the line before the step."""
    assert touch.step is not None
    edits.replaced[touch.statement] = []
    clip = _written(about, touch)
    for test in reversed(touch.tests):
        clip = f"if {test}:\n    " + clip.replace("\n", "\n    ")
    place = touch.step.statement
    edits.before[place] += [each for each in unscale if each not in edits.before[place]]
    edits.before[place].append(clip)
    if touch.setting != "norm":
        edits.notes[place].append(SCALED_CLIP if touch.scaled else PER_MICRO_BATCH)


def _written(about: Understanding, touch: Touch) -> str:
    """Return the source of a clip, with `amp.master_params(...)` written out."""
    source = about.program.source
    text = source.code(touch.statement)
    for call in about.program.master_params(touch.statement):
        text = text.replace(source.code(call), MASTERS.format(source.code(call.args[0])))
    return text


def _step(target: TorchTarget, edits: Edits, move: Move) -> None:
    if move.loop is None:
        edits.replaced[move.statement] = [target.step(move.owner)]
    else:
        edits.replaced[move.statement] = [
            f"for {move.owner} in {move.loop}:\n    {target.step(move.owner)}"
        ]


def _update(about: Understanding, target: TorchTarget, edits: Edits) -> None:
    """Update the scale after the last step of each suite.

    If an optimizer steps several times in a suite, update the scale after each step.
    """
    suites: dict[int, list[Move]] = {}
    for move in about.steps:
        if edits.replaced.get(move.statement):
            suites.setdefault(id(about.windows.suite(move.statement)), []).append(move)
    for moves in suites.values():
        again = len({move.owner for move in moves}) < len(moves)
        for move in moves if again else moves[-1:]:
            edits.after[move.statement].append(f"{target.object}.update()")
