"""Gradients are cleared before every backward pass, and a step uses only the last pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import is_only_call
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Fact, Shape

_OFTEN = 2
_SHARE = 0.5  # of the steps; the windows at the end of an epoch may be shorter
_STEPS = {"scaler step", "step"}
_ALWAYS = 0.9  # of the steps, if each of them discards a single pass


@dataclass(frozen=True, slots=True)
class _Pass:
    """A backward pass for an optimizer.

    Attributes:
        event: Its event.
        differentiable: Whether a model was called, for this pass, with an input that has gradients.
        cleared: The call that clears its gradients before any use; None if there is none.
    """

    event: Event
    differentiable: bool
    cleared: Event | None = None

    def is_like(self, other: _Pass) -> bool:
        """Return whether both come from one line, for the same purpose as far as it is known."""
        return (
            self.event.site == other.event.site
            and self.event.facts["reaches"] == other.event.facts["reaches"]
            and self.differentiable == other.differentiable
        )


def judge(evidence: Evidence) -> Finding | None:
    """Find steps that use only the last of several backward passes of one line."""
    complete = [shape for shape in evidence.loop.shapes if shape.complete]
    for number in range(len(evidence.static.optimizers)):
        stepping = [each for each in complete if _step(each, number)]
        found = [(each, lost) for each in stepping if (lost := _lost(each, number))]
        count = sum(shape.count for shape, _ in found)
        total = sum(shape.count for shape in stepping)
        if count < _OFTEN:
            continue
        shape, lost = max(found, key=lambda each: each[0].count)
        if count < (_SHARE if len(lost) > 1 else _ALWAYS) * total:
            continue
        zero, step = lost[0].cleared, _step(shape, number)
        site = zero.site if zero else None
        line = site.text if site and is_only_call(site.text) else "optimizer.zero_grad()"
        after = step.site.text if step and step.site else ""
        return Finding(
            summary="the gradients are cleared before every backward(), so each step uses only the "
            f"last of its {len(lost) + 1} backward passes",
            facts=(
                (
                    f"in {count} of {counted(total, 'step')}, the gradients of "
                    f"{counted(len(lost), 'backward pass', 'backward passes')} were cleared before "
                    "anything used them"
                ),
            ),
            change=(
                f"- {line}",
                f"  {after if is_only_call(after) else 'optimizer.step()'}",
                f"+ {line}  # in the same block, after the step",
            ),
            confidence=LIKELY,
            site=site,
        )
    return None


def _step(shape: Shape, number: Fact) -> Event | None:
    """Return the last call of the loop that makes an optimizer step, if no closure runs in it.

    Return None, too, if the loop itself has changed the gradients of a backward, except by
    clipping: it may have kept gradients that it cleared.
    """
    if any(
        each.kind == "write" and not (each.site and "clip" in each.site.text)
        for each in shape.events
        if each.facts.get("optimizer") == number
    ):
        return None
    steps = [
        each
        for each in shape.events
        if each.facts.get("optimizer") == number and each.kind in _STEPS
    ]
    if not steps or any(each.facts["assigned"] or each.facts.get("closure") for each in steps):
        return None
    return steps[-1]


def _lost(shape: Shape, number: Fact) -> list[_Pass]:
    """Return the backward passes whose gradients are cleared, if only one pass is kept.

    Only passes that are like the kept pass count: other ones compute gradients for another purpose,
    such as those of a generator in a discriminator. Their gradients must be cleared by the line
    that clears the gradients before the kept pass, as a loop can leave out batches on purpose.
    """
    lost: list[_Pass] = []
    kept: list[_Pass] = []
    waiting: list[_Pass] = []
    differentiable = False
    zero: Event | None = None
    for event in shape.events:
        if event.kind == "forward":
            differentiable |= bool(event.facts["differentiable"])
        elif event.kind == "backward":
            if str(number) in str(event.facts["reaches"]).split(","):
                waiting.append(_Pass(event, differentiable))
            differentiable = False
        elif event.kind == "zero" and event.facts["optimizer"] == number:
            if event.facts["examined"]:
                kept += waiting
            else:
                lost += [_Pass(each.event, each.differentiable, event) for each in waiting]
            waiting, zero = [], event
        elif event.kind in _STEPS and event.facts["optimizer"] == number:
            kept += waiting
            waiting = []
    if len(kept) != 1 or zero is None:
        return []
    return [
        each
        for each in lost
        if each.is_like(kept[0]) and each.cleared is not None and each.cleared.site == zero.site
    ]


RULE = Rule(
    code="GRADIENTS_CLEARED_EARLY",
    name="gradients that are cleared before a step uses them",
    rows=(58,),
    citations=("bytetriper/RAE#67", "huggingface/accelerate#1299"),
    needs=frozenset({"loop", "static"}),
    judge=judge,
    harmless=True,
)
