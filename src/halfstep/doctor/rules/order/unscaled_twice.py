"""The same gradients are divided by the loss scale twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import optimizer_name, second_unscale
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Shape


def judge(evidence: Evidence) -> Finding | None:
    """Find gradients that the loop or a scaler divides by the loss scale, and then a scaler."""
    return _by_scaler(evidence) or _by_loop(evidence)


def _by_scaler(evidence: Evidence) -> Finding | None:
    """Find two `unscale_` calls without a backward or an update between them."""
    second = second_unscale(evidence.loop)
    if second is None or not second.same:
        return None
    site = second.event.site
    return Finding(
        summary="scaler.unscale_() is called a second time on the same gradients: they are already "
        "divided by the loss scale, and the scaler refuses the second call",
        facts=(f"{evidence.loop.share(second.event, 'optimizer')}, this line called unscale_()",),
        change=(f"- {site.text}" if site else "- scaler.unscale_(optimizer)",),
        site=site,
    )


def _by_loop(evidence: Evidence) -> Finding | None:
    """Find a division by the loss scale in the loop, after or before that of a scaler."""
    for shape, event in evidence.loop.of("divide"):
        again = _divided_again(shape, event)
        if again is None:
            continue
        site = event.site
        change = [f"- {site.text}" if site else "- gradient /= scaler.get_scale()"]
        is_before = shape.events.index(again) < shape.events.index(event)
        order = "the scaler divides the gradients by the loss scale, and then the loop divides"
        if is_before and site:
            text = "+ # without the division by the scale: scaler.unscale_() has divided them"
            change = [f"  {site.text}", text]
        else:
            order = "the loop divides the gradients by the loss scale, and then the scaler divides"
        if again.kind == "scaler step":
            optimizer = optimizer_name(evidence.loop, event.facts["optimizer"])
            change.append(f"+ scaler.unscale_({optimizer})")
        return Finding(
            summary=f"{order} them again: they become almost 0",
            facts=(
                (
                    f"{evidence.loop.share(event, 'optimizer')}, this line divided gradients by "
                    "scaler.get_scale()"
                ),
            ),
            change=tuple(change),
            site=site,
        )
    return None


def _divided_again(shape: Shape, division: Event) -> Event | None:
    """Return the call of a scaler that divides the same gradients as a division by the loop."""
    place = shape.events.index(division)
    for each in reversed(shape.events[:place]):
        if each.kind in {"backward", "zero"}:
            break
        if each.kind == "unscale" and each.facts["optimizer"] == division.facts["optimizer"]:
            return each
    for each in shape.events[place + 1 :]:
        if each.kind == "backward":
            return None
        if each.facts.get("optimizer") != division.facts["optimizer"]:
            continue
        if each.kind in {"unscale", "scaler step"}:
            return each
        if each.kind == "zero" or (each.kind == "step" and not each.facts["by_scaler"]):
            return None
    return None


RULE = Rule(
    code="UNSCALED_TWICE",
    name="gradients divided by the loss scale twice",
    rows=(59,),
    citations=("docs.pytorch.org/docs/stable/notes/amp_examples",),
    needs=frozenset({"loop"}),
    judge=judge,
    explains=("DECAY_DOMINATES",),
)
