"""Settings of an optimizer stand in each other's places, such as the betas of Adam."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates
from halfstep.doctor.record.source import with_positional
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.static import OptimizerFacts

_LONGER = 4.9  # times: the memory of gradients, compared with that of their squares
_DECAY = 0.02  # a dampening below it is a weight decay in the place of the dampening
_SMOOTHING = ("alpha", "rho", "beta2")  # of squared gradients: near 1, or 0 without any
_NO_SMOOTHING, _NO_EPS = 0.01, 0.5  # a smoothing below, an eps above: each may be the other
_RATE, _MOMENTUM = (0.8, 1.0), 0.1  # a rate between, with a momentum below: each may be the other
_DECAY_AS_EPS, _EPS_AS_DECAY = 1e-6, (5e-3, 0.5)  # a decay up to, an eps between
_DECAY_AS_MOMENTUM, _MOMENTUM_AS_DECAY = (0.5, 1.0), 0.02  # a decay between, a momentum below
_BETAS = re.compile(r"betas\s*=\s*\(([^(),]+),\s*([^(),]+)\)")


def judge(evidence: Evidence) -> Finding | None:
    """Find betas in the wrong order, and settings that only make sense in another's place."""
    for number, optimizer in enumerate(evidence.static.optimizers):
        if optimizer.steps:
            given = evidence.of(LearningRates).of(number).given
            finding = _betas(optimizer) or _dampening(optimizer) or _exchanged(optimizer, given)
            if finding is not None:
                return finding
    return None


def _betas(optimizer: OptimizerFacts) -> Finding | None:
    first, second = (optimizer.settings.get(name) for name in ("beta1", "beta2"))
    if not (isinstance(first, float) and isinstance(second, float)):
        return None
    # Lion's betas have another meaning, and so have those of an optimizer with three.
    is_longer = 0 < second < 1 and 1 - second >= _LONGER * (1 - first)
    if not is_longer or "beta3" in optimizer.settings:
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
    elif 0 < float(momentum) <= _DECAY and dampening > _NO_EPS:
        changed = made
        summary = (
            f"{optimizer.kind} has momentum={momentum:g} and dampening={dampening:g}: the third "
            "argument is the momentum and the fourth one the dampening, and a weight decay and a "
            "momentum were meant"
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


def _exchanged(optimizer: OptimizerFacts, given: tuple[float, ...]) -> Finding | None:
    """Find two settings each of which is out of its range, and within the other's.

    Args:
        optimizer: The optimizer, with its settings at the end.
        given: The learning rates with which it was made.
    """
    settings = {
        name: float(value)
        for name, value in optimizer.settings.items()
        if isinstance(value, float | int)
    }
    settings["lr"] = next(iter(given), settings.get("lr", 0.0))
    eps, rate, momentum = (settings.get(name, 0.0) for name in ("eps", "lr", "momentum"))
    for name in _SMOOTHING:
        if 0 < settings.get(name, 0.0) < _NO_SMOOTHING and _NO_EPS < eps < 1:
            effect = f"it divides gradients by {eps:g}, and hardly by their size"
            return _in_other_places(optimizer, (name, settings[name]), ("eps", eps), effect)
    decay = optimizer.largest_decay
    if 0 < decay <= _DECAY_AS_EPS and _EPS_AS_DECAY[0] <= eps <= _EPS_AS_DECAY[1]:
        effect = f"its steps shrink with gradients below {eps:g}, and weights hardly decay"
        return _in_other_places(optimizer, ("eps", eps), ("weight_decay", decay), effect)
    if 0 < momentum < _MOMENTUM_AS_DECAY and _DECAY_AS_MOMENTUM[0] <= decay < _DECAY_AS_MOMENTUM[1]:
        effect = f"it averages over {1 / (1 - momentum):.1f} steps, and weights decay to almost 0"
        one, other = ("momentum", momentum), ("weight_decay", decay)
        return _in_other_places(optimizer, one, other, effect)
    if _RATE[0] < rate < _RATE[1] and 0 < momentum < _MOMENTUM:
        effect = f"it makes long steps, and averages over {1 / (1 - momentum):.1f} of them"
        return _in_other_places(optimizer, ("lr", rate), ("momentum", momentum), effect)
    return None


def _in_other_places(
    optimizer: OptimizerFacts, one: tuple[str, float], other: tuple[str, float], effect: str
) -> Finding:
    names = optimizer.arguments
    places = [names.index(each) for each, _ in (one, other) if each in names]
    order = f"the order of its arguments is {', '.join(names[: max(places, default=0) + 1])}"
    return Finding(
        summary=f"{optimizer.kind} has {one[0]}={one[1]:g} and {other[0]}={other[1]:g}, so "
        f"{effect}: each value is one for the other setting",
        facts=(order,) if len(places) > 1 else (),
        change=(
            f"+ # give {optimizer.kind} {one[0]}={other[1]:g} and {other[0]}={one[1]:g}, by name",
        ),
        confidence=LIKELY,
        site=optimizer.site,
    )


RULE = Rule(
    code="SETTINGS_SWAPPED",
    name="settings of an optimizer in each other's places",
    rows=(58,),
    citations=("mila-iqia/blocks#1159", "pytorch/pytorch#137356", "NVIDIA/warp#1143"),
    needs=frozenset({"rates", "static"}),
    judge=judge,
    explains=("DECAY_DOMINATES",),
    harmless=True,
)
