"""How gradients are unscaled and clipped, and optimizers stepped, with a `torch.amp.GradScaler`.

A GradScaler unscales the gradients of an optimizer once for each of its steps: before whatever
first reads them, else in the step.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.source import inner
from halfstep.migrate.targets import MASTERS
from halfstep.migrate.zeroing import UNSCALED, keeping

if TYPE_CHECKING:
    from halfstep.migrate.render import Edits
    from halfstep.migrate.steps import Move
    from halfstep.migrate.targets import TorchTarget
    from halfstep.migrate.understanding import Understanding
    from halfstep.migrate.windows import Touch

TWICE = "gradients are read after every backward, and a GradScaler unscales them once for each step"
NO_STEP = "no step in this function follows what reads these gradients"
PER_MICRO_BATCH = (
    "Apex clipped after every backward; a GradScaler unscales, and this clips, once for each step"
)
SCALED_CLIP = "Apex clipped gradients that were still scaled; they are true ones here"
HALF_CLIP = "under O2 this clipped fp16 gradients that no step used; it clips the true ones here"


def on_torch(about: Understanding, target: TorchTarget, edits: Edits) -> None:
    """Write what a GradScaler needs about clips and steps."""
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
    """Unscale before what touches gradients, or say why that cannot be."""
    clips = touch.setting in {"clip_norm", "clip_value"}
    if touch.scaled and not clips:
        return  # Apex had not unscaled either
    step = touch.step
    if step is None:
        if _is_scaled(about, touch):
            about.leave(touch.statement, NO_STEP)
        return
    losses = [loss.statement.lineno for loss in about.program.losses if about.live(loss)]
    between = range(touch.statement.lineno + 1, step.statement.lineno)
    if not touch.scaled and any(line in between for line in losses):
        return  # gradients of the step before, which the scaler has unscaled
    assert touch.head is not None
    lines = [f"{target.object}.unscale_({step.owner})"]
    if step.loop is not None:
        lines = [f"for {step.owner} in {step.loop}:\n    {lines[0]}"]
    if touch.moved or touch.scaled:
        if not clips or touch.value_used:
            about.leave(touch.statement, TWICE)
        else:
            _move(about, edits, touch, lines)
        return
    _unscale_here(about, target, edits, touch, lines, unscaled)


def _unscale_here(
    about: Understanding,
    target: TorchTarget,
    edits: Edits,
    touch: Touch,
    lines: list[str],
    unscaled: dict[ast.stmt, int],
) -> None:
    """Unscale before what touches gradients, once for each step."""
    step = touch.step
    assert step is not None
    assert touch.head is not None
    clips = touch.setting in {"clip_norm", "clip_value"}
    line = touch.head.lineno
    if unscaled.get(step.statement, line) >= line:
        unscaled[step.statement] = line
        if not any(each in edits.before[touch.head] for each in lines):
            edits.before[touch.head][:0] = lines
    for jump in _jumps(about, touch.head, step.statement):
        if not edits.before[jump]:
            edits.before[jump].append(f"{target.object}.update()")
    test = about.branches.only_with_amp.get(touch.statement)
    if test is not None:
        edits.replaced[touch.statement] = [f"if {test}:\n    {_written(about, touch)}"]
    if clips and touch.of_model and about.may_have_masters:
        edits.notes[touch.statement].append(HALF_CLIP)


def _jumps(about: Understanding, head: ast.stmt, step: ast.stmt) -> list[ast.stmt]:
    """Return the statements that leave a step out whose gradients have been unscaled."""
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
    """Tell whether a backward came after the last step before what touches gradients."""
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
    """Clip before the step, and no more after every backward."""
    assert touch.step is not None
    edits.replaced[touch.statement] = []
    clip = _written(about, touch)
    for test in reversed(touch.tests):
        clip = f"if {test}:\n    " + clip.replace("\n", "\n    ")
    place = touch.step.statement
    edits.before[place] += [*unscale, clip]
    edits.notes[place].append(SCALED_CLIP if touch.scaled else PER_MICRO_BATCH)


def _written(about: Understanding, touch: Touch) -> str:
    """Return a clip with amp's master parameters written out."""
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
    """Update the scale behind the last step of each suite, or where an optimizer steps again."""
    suites: dict[int, list[Move]] = {}
    for move in about.steps:
        if edits.replaced.get(move.statement):
            suites.setdefault(id(about.windows.suite(move.statement)), []).append(move)
    for moves in suites.values():
        again = len({move.owner for move in moves}) < len(moves)
        for move in moves if again else moves[-1:]:
            edits.after[move.statement].append(f"{target.object}.update()")
