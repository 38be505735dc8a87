"""Each step's gradients are clipped to a tiny part of them, so that nothing is learned."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_argument
from halfstep.doctor.signals.ledgers.clipping import ClippingLine, ClippingLines, ShrinkingLine
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 4  # sampled steps
_FACTOR, _STILL_FACTOR = 1000.0, 100.0  # the latter where the parameters hardly move
_FALLS = 0.95  # of the first losses
_LITTLE = 0.9  # the same, where the parameters hardly move
_SMALL, _STILL = 1e-4, 5e-5  # change of a parameter in a step, relative to its size


def judge(evidence: Evidence) -> Finding | None:
    """Find a line that always clips by such a factor, while the loss does not fall."""
    optimizers = [each for each in evidence.static.optimizers if each.steps]
    if len(optimizers) != 1 or optimizers[0].kind != "SGD":
        return None
    course = evidence.numbers.course(evidence.static.optimizers.index(optimizers[0]))
    if course is None or course[1] < _LITTLE * course[0]:
        return None
    falls = course[1] < _FALLS * course[0]
    number = evidence.static.optimizers.index(optimizers[0])
    samples = [each for each in evidence.samples if each.optimizer == number]
    moves = [each.relative_update for each in samples]
    # Loaded weights may be meant to stay nearly as they are.
    is_still = bool(moves) and median(moves) <= _STILL and not any(each.loaded for each in samples)
    for line in evidence.of(ClippingLines).lines:
        norms = [each for each in line.norms if math.isfinite(each)]
        least = _STILL_FACTOR if is_still else math.inf if falls else _FACTOR
        if line.limit > 0 and len(norms) >= _FEWEST and min(norms) >= least * line.limit:
            return _finding(line, norms, course)
    for shrinking in evidence.of(ClippingLines).shrinking:
        factors = [before / now for before, now in shrinking.norms if 0 < now < before < math.inf]
        # A product may only undo that of the loss, as in a scaler of the loop's own.
        is_bound = "clamp" in shrinking.by or "clip" in shrinking.by
        least = _STILL_FACTOR if is_bound and is_still else math.inf if falls else _FACTOR
        is_always = len(factors) == len(shrinking.norms) >= _FEWEST and min(factors) >= least
        if is_always and moves and (is_bound or median(moves) <= _SMALL):
            return _shrunk(shrinking, factors, course, median(moves))
    return None


def _shrunk(
    line: ShrinkingLine, factors: list[float], course: tuple[float, float], move: float
) -> Finding:
    text = line.site.text if line.site else "the line that writes gradients"
    return Finding(
        summary=f"between backward and step, the loop makes the gradients {median(factors):.0f} "
        "times smaller; SGD's steps shrink by this factor, and the loss hardly falls: "
        f"{course[0]:.3g} at first, {course[1]:.3g} at the end",
        facts=(
            f"in {counted(len(factors), 'sampled step')}, {min(factors):.3g} times or more",
            f"a step changes a parameter by {move:.1e} of its size, as median",
        ),
        change=(
            f"  {text}",
            f"+ # with a limit near the usual norm of the gradients, {line.norms[0][0]:.1g}",
        ),
        confidence=LIKELY,
        site=line.site,
    )


def _finding(line: ClippingLine, norms: list[float], course: tuple[float, float]) -> Finding:
    usual = median(norms)
    text = line.site.text if line.site else ""
    limit = f"{usual:.1g}"
    changed = with_argument(text, "clip_grad_norm_", "max_norm", limit, position=1)
    return Finding(
        summary=f"the gradients are clipped to a norm of {line.limit:g}, {usual / line.limit:.0f} "
        "times less than they have; SGD's steps shrink by this factor, and the loss hardly falls: "
        f"{course[0]:.3g} at first, {course[1]:.3g} at the end",
        facts=(
            (
                f"in {counted(len(norms), 'sampled step')}, the norm before clipping is "
                f"{min(norms):.3g} to {max(norms):.3g}"
            ),
        ),
        change=(f"- {text}", f"+ {changed}")
        if changed and changed != text
        else (f"+ # clip to a norm near the usual one, {limit}",),
        confidence=LIKELY,
        site=line.site,
    )


RULE = Rule(
    code="CLIPPED_TOO_FAR",
    name="gradients that are clipped to almost nothing",
    rows=(58,),
    citations=("wandb/senpai#978", "facebookresearch/detr#198"),
    needs=frozenset({"clipping", "numbers", "samples", "static"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_LOW",),
    harmless=True,
)
