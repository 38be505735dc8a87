"""Settings of an optimizer stand in each other's places, such as the betas of Adam."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_positional
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.static import OptimizerFacts

_LONG, _SHORT = 0.99, 0.95  # betas: a long memory of gradients, a short one of their squares
_DECAY = 0.02  # a dampening below it is a weight decay in the place of the dampening
_BETAS = re.compile(r"betas\s*=\s*\(([^(),]+),\s*([^(),]+)\)")


def judge(evidence: Evidence) -> Finding | None:
    """Find betas in the wrong order, and a dampening that is a momentum or a weight decay."""
    for optimizer in evidence.static.optimizers:
        if optimizer.steps:
            finding = _betas(optimizer) or _dampening(optimizer)
            if finding is not None:
                return finding
    return None


def _betas(optimizer: OptimizerFacts) -> Finding | None:
    first, second = (optimizer.settings.get(name) for name in ("beta1", "beta2"))
    if not (isinstance(first, float) and isinstance(second, float)):
        return None
    # Lion's betas have another meaning, and so have those of an optimizer with three.
    if first < _LONG or second > _SHORT or "beta3" in optimizer.settings:
        return None
    if "Adam" not in optimizer.kind:
        return None
    made = optimizer.made_by
    swapped = _BETAS.sub(r"betas=(\2, \1)", made)
    return Finding(
        summary=f"{optimizer.kind} has betas=({first:g}, {second:g}): its average of gradients "
        f"goes over {1 / max(1e-12, 1 - first):.0f} steps, longer than that of their squares over "
        f"{1 / max(1e-12, 1 - second):.0f}; the betas are swapped",
        facts=("the usual betas are (0.9, 0.999)",),
        change=(f"- {made}", f"+ {swapped}")
        if swapped != made
        else (f"+ # give {optimizer.kind} betas=({second:g}, {first:g})",),
        confidence=LIKELY,
        site=optimizer.site,
    )


def _dampening(optimizer: OptimizerFacts) -> Finding | None:
    settings, made = optimizer.settings, optimizer.made_by
    dampening, momentum = settings.get("dampening"), settings.get("momentum")
    if not isinstance(dampening, float | int) or not dampening:
        return None
    if not momentum:
        changed = made.replace("dampening=", "momentum=")
        summary = (
            f"{optimizer.kind} has dampening={dampening:g} without a momentum, which has no "
            "effect: a momentum was meant"
        )
    elif 0 < dampening <= _DECAY and not settings.get("weight_decay"):
        changed = made.replace("dampening=", "weight_decay=")
        if changed == made:
            value = f"weight_decay={dampening:g}"
            moved = with_positional(made, optimizer.kind, 3, value)
            changed = moved or made
        summary = (
            f"{optimizer.kind} has dampening={dampening:g} and weight_decay=0: the fourth argument "
            "is the dampening, and a weight decay was meant"
        )
    else:
        return None
    return Finding(
        summary=summary,
        facts=(
            f"momentum={momentum}, dampening={dampening}",
            f"lr={settings.get('lr')}, weight_decay={settings.get('weight_decay')}",
        ),
        change=(f"- {made}", f"+ {changed}")
        if changed != made
        else (f"+ # give {optimizer.kind} its settings by name, not by position",),
        confidence=LIKELY,
        site=optimizer.site,
    )


RULE = Rule(
    code="SETTINGS_SWAPPED",
    name="settings of an optimizer in each other's places",
    rows=(58,),
    citations=("mila-iqia/blocks#1159", "pytorch/pytorch#137356", "NVIDIA/warp#1143"),
    needs=frozenset({"static"}),
    judge=judge,
    harmless=True,
)
