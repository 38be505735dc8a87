"""Gradients are clipped after the step that has already used them."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import is_only_call
from halfstep.doctor.signals.ledgers.clipping import ClippingLines
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Collection

    from halfstep.doctor.record import Event, Evidence, Fact, Shape
    from halfstep.doctor.record.sites import Site
    from halfstep.doctor.signals.ledgers.clipping import ClippingLine

_OFTEN = 2
_STEPS = {"step", "scaler step"}


def judge(evidence: Evidence) -> Finding | None:
    """Find calls that clip gradients only after each step that uses them."""
    loop, lines = evidence.loop, evidence.of(ClippingLines).lines
    limited = [each for each in lines if isfinite(each.limit)]
    measured = {each.site for each in lines if each not in limited}
    for number in range(len(evidence.static.optimizers)):
        found = [(shape, _late(shape, number, measured)) for shape in loop.shapes if shape.complete]
        late = [(shape, pair) for shape, pair in found if pair is not None]
        if sum(shape.count for shape, _ in late) < _OFTEN or len(late) < len(found):
            continue
        step, clip = late[0][1]
        site = clip.site
        line = site.text if site and is_only_call(site.text) else "torch.nn.utils.clip_grad_norm_()"
        return Finding(
            summary="the gradients are clipped after the step, which has already used them without "
            "clipping",
            facts=(f"{loop.share(clip)}, this line clipped the gradients after the step",),
            change=(
                *(("+ scaler.unscale_(optimizer)",) if loop.of("scale") else ()),
                f"+ {line}",
                f"  {step.site.text if step.site else 'optimizer.step()'}",
                f"- {line}",
            ),
            confidence=LIKELY,
            site=site,
        )
    hooked = [each for each in limited if each.in_step and each.late]
    if hooked and len(hooked) == len(limited):
        first = hooked[0]
        # The first call is not counted, because nothing is compared before it.
        if first.late >= max(_OFTEN, first.calls - 1) and not first.carried:
            return _in_hook(first)
    return None


def _in_hook(line: ClippingLine) -> Finding:
    return Finding(
        summary="the gradients are clipped after the step, in a hook that step() calls at its end: "
        "the step has already used them without clipping",
        facts=(
            f"in {line.late} of {counted(line.calls, 'call')}, the step had changed the parameters",
            f"the norms were up to {max(line.norms, default=0.0):.4g}, the limit is {line.limit:g}",
        ),
        change=(
            (
                "+ # in a hook before the step: optimizer.register_step_pre_hook() in place of "
                "optimizer.register_step_post_hook()"
            ),
        ),
        confidence=LIKELY,
        site=line.site,
    )


def _late(
    shape: Shape, number: Fact, measured: Collection[Site | None]
) -> tuple[Event, Event] | None:
    """Return the last step of an optimizer and the clipping after it, if none is before it."""
    mine = [each for each in shape.events if each.facts.get("optimizer") == number]
    steps = [each for each in mine if each.kind in _STEPS]
    clips = [each for each in mine if each.site not in measured and _clips(each)]
    if not steps or not clips:
        return None
    last, first = mine.index(steps[-1]), mine.index(clips[0])
    cleared = any(each.kind == "zero" for each in mine[last:first])
    used = any(each.facts.get("stale") for each in steps)
    return (steps[-1], clips[0]) if first > last and not (cleared or used) else None


def _clips(event: Event) -> bool:
    """Return whether the loop limits the gradients, or multiplies them by what depends on them."""
    if event.kind != "write" or event.facts["linear"]:
        return False
    by = str(event.facts["by"])
    return not by or "clamp" in by or "clip" in by


RULE = Rule(
    code="CLIPPED_AFTER_STEP",
    name="gradients clipped after the step",
    rows=(59,),
    citations=("docs.pytorch.org/docs/stable/notes/amp_examples",),
    needs=frozenset({"loop", "static", "clipping"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH",),
)
