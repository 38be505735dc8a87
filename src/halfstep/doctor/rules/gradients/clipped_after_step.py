"""Gradients are clipped after the step that has already used them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import is_only_call
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Fact, Shape

_OFTEN = 2
_STEPS = {"step", "scaler step"}


def judge(evidence: Evidence) -> Finding | None:
    """Find calls that clip gradients only after each step that uses them."""
    loop = evidence.loop
    for number in range(len(evidence.static.optimizers)):
        found = [(shape, _late(shape, number)) for shape in loop.shapes if shape.complete]
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
    return None


def _late(shape: Shape, number: Fact) -> tuple[Event, Event] | None:
    """Return the last step of an optimizer and the clipping after it, if none is before it."""
    mine = [each for each in shape.events if each.facts.get("optimizer") == number]
    steps = [each for each in mine if each.kind in _STEPS]
    clips = [each for each in mine if _clips(each)]
    if not steps or not clips:
        return None
    last, first = mine.index(steps[-1]), mine.index(clips[0])
    cleared = any(each.kind == "zero" for each in mine[last:first])
    return (steps[-1], clips[0]) if first > last and not cleared else None


def _clips(event: Event) -> bool:
    text = event.site.text if event.site else ""
    # With an infinite limit, the call only returns the norm.
    return event.kind in {"read", "write"} and "clip_grad" in text and "inf" not in text


RULE = Rule(
    code="CLIPPED_AFTER_STEP",
    name="gradients clipped after the step",
    rows=(59,),
    citations=("docs.pytorch.org/docs/stable/notes/amp_examples",),
    needs=frozenset({"loop", "static"}),
    judge=judge,
)
