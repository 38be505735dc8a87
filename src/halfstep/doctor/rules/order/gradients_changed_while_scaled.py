"""Gradients are clipped or changed in another way while they are still scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import optimizer_name
from halfstep.doctor.signals.ledgers.clipping import ClippingLines
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.record import Event, Evidence


_LARGE = 100.0  # as a limit of gradients that are not scaled
_OF_SCALE = 0.01
_ADDS = {"add_", "sub_", "_foreach_add_", "_foreach_sub_"}


def judge(evidence: Evidence) -> Finding | None:
    """Find a write to gradients between a scaled backward and the unscaling of the gradients."""
    changed = [
        event
        for _, event in evidence.loop.of("write")
        if event.facts["scaled"] and not event.facts["linear"] and not _fits(evidence, event)
    ]
    if not changed:
        return _by_hook(evidence)
    event = changed[0]
    line = event.site.text if event.site else "torch.nn.utils.clip_grad_norm_(...)"
    name = optimizer_name(evidence.loop, event.facts["optimizer"])
    late = _next_in_iteration(evidence, event, "unscale")
    unscale = late.site.text if late and late.site else f"scaler.unscale_({name})"
    if _accumulates(evidence, event):
        change = _moved(evidence, event, line, unscale, late)
    else:
        # A second unscale_ before the same step is an error.
        once = "" if "clip_grad" in line else "  # once, before any loop that contains this line:"
        change = (f"+ {unscale}{once}", f"  {line}", *([f"- {unscale}"] if late else []))
    norms = [step.gradient_norm for step in evidence.numbers.steps if step.gradient_norm]
    facts = [
        (
            f"{evidence.loop.share(event, 'scaled', 'linear')}, gradients changed "
            "after backward and before unscale_"
        )
    ]
    if norms:
        facts.append(f"the optimizer was given a gradient norm of {norms[len(norms) // 2]:.3g}")
    # A difference of gradients, for example, would fit their loss scale.
    adds = event.facts["by"] in _ADDS
    return Finding(
        summary="gradients are changed while they are still multiplied by the loss scale: "
        f"{_effect(event)}",
        facts=tuple(facts),
        change=change,
        confidence=LIKELY if adds else CERTAIN,
        site=event.site,
    )


def _fits(evidence: Evidence, write: Event) -> bool:
    """Return whether a write limits a norm to that of scaled gradients: 1.0 * get_scale()."""
    scales = sorted(step.scale for step in evidence.numbers.steps if step.scale)
    lines = [each for each in evidence.of(ClippingLines).lines if each.site == write.site]
    if not (write.site and scales and lines):
        return False
    return lines[0].limit >= max(_LARGE, _OF_SCALE * scales[len(scales) // 2])


def _by_hook(evidence: Evidence) -> Finding | None:
    """Find a hook of a parameter that limits scaled gradients."""
    for _, event in evidence.loop.of("hook"):
        line = event.site.text if event.site else "parameter.register_hook(...)"
        name = optimizer_name(evidence.loop, event.facts["optimizer"])
        return Finding(
            summary="a hook changes gradients while they are still multiplied by the loss scale: "
            "clipping to 1 then acts like clipping to 1/scale",
            facts=("hooks run in backward(), before scaler.unscale_()",),
            change=(
                f"- {line}",
                "+ # clip after the backward instead, right before scaler.step():",
                f"+ scaler.unscale_({name})",
                "+ torch.nn.utils.clip_grad_value_(model.parameters(), clip_value=1.0)",
            ),
            confidence=LIKELY,
            site=event.site,
        )
    return None


def _effect(write: Event) -> str:
    """Say what a write does to scaled gradients."""
    if write.facts["by"] in _ADDS:
        return "what is added is later divided by the loss scale, too"
    if write.facts["by"] == "nan_to_num_":
        return "the scaler sees no inf or NaN, so it never lowers the loss scale"
    return "clipping to 1 then acts like clipping to 1/scale"


def _after(evidence: Evidence, write: Event) -> Iterator[tuple[Event, ...]]:
    """Yield the events after this write, for each shape of iteration that contains it."""
    for shape in evidence.loop.shapes:
        for place, event in enumerate(shape.events):
            if event.kind == "write" and (event.site, event.facts) == (write.site, write.facts):
                yield shape.events[place + 1 :]
                break


def _next_in_iteration(evidence: Evidence, write: Event, kind: str) -> Event | None:
    """Return the first event of a kind after the write, on the same optimizer, or None."""
    for later in _after(evidence, write):
        for each in later:
            if each.kind == kind and each.facts["optimizer"] == write.facts["optimizer"]:
                return each
    return None


def _accumulates(evidence: Evidence, write: Event) -> bool:
    """Return whether a backward adds to the gradients between the write and the step."""
    number = str(write.facts["optimizer"])
    return any(
        each.kind == "backward" and number in str(each.facts["reaches"]).split(",")
        for later in _after(evidence, write)
        for each in later
    )


def _moved(
    evidence: Evidence, write: Event, line: str, unscale: str, late: Event | None
) -> tuple[str, ...]:
    """Return the change that moves a write from every micro-batch to right before the step.

    If `unscale_` were inserted before the write, it would run several times before one step, and
    the scaler raises an error at the second call.
    """
    stepping = _next_in_iteration(evidence, write, "scaler step")
    name = optimizer_name(evidence.loop, write.facts["optimizer"])
    step = stepping.site.text if stepping and stepping.site else f"scaler.step({name})"
    if "clip_grad" in line and line.count("(") == line.count(")"):
        removed, moved = [f"- {line}"], f"+ {line}"
    else:  # The line is part of a loop or of a multi-line call, so it cannot be moved alone.
        removed, moved = [], "+ # change the gradients here, not after each backward():"
    once = f"{unscale}  # once per step, after its last backward"
    return (*removed, f"  {unscale}" if late else f"+ {once}", moved, f"  {step}")


RULE = Rule(
    code="GRADIENTS_CHANGED_WHILE_SCALED",
    name="gradients changed before unscale_",
    rows=(2,),
    citations=(
        "milesial/Pytorch-UNet#470",
        "pytorch/examples#1196",
        "Lightning-AI/pytorch-lightning#9330",
    ),
    needs=frozenset({"clipping", "loop", "numbers"}),
    judge=judge,
)
