"""Half-precision weights lose updates that are too small for their format."""

from __future__ import annotations

import math
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import difference, in_fp32
from halfstep.doctor.record.trials import Variation
from halfstep.doctor.remedies import with_eps
from halfstep.doctor.signals.ledgers.parameters import STILL, Owner, ParameterLedger
from halfstep.doctor.signals.values.own_updates import OwnUpdate, OwnUpdates
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, HalfCast, Sample

MOST = 0.5
EARLY = 64
_STEPS = 16
_LARGE = 256.0  # elements in fp32; the distance to the next number is above 1e-5 then
_SAMPLES = 4
_WORTH = 1e-3  # of the largest gradient
_EXACT = 0.1  # of a gradient's norm: if fp32 leaves less of it, the rest was rounding

_TORCH = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
_OTHERWISE = {
    "fp16": '"o2", which keeps fp32 master weights',
    "bf16": '"bf16-sr", which rounds updates stochastically',
}


def judge(evidence: Evidence) -> Finding | None:
    """Find half-precision parameters whose elements mostly do not change despite gradients."""
    found = next(filter(None, (_lost(evidence, each) for each in _TORCH)), None) or _large(evidence)
    found = found or next(filter(None, map(partial(_still, evidence), _owners(evidence))), None)
    return found or next(filter(None, map(_by_the_loop, evidence.of(OwnUpdates).lines)), None)


def _by_the_loop(line: OwnUpdate) -> Finding | None:
    """Find updates by a line of the loop, without an optimizer, that most elements lose."""
    # The first updates of a training are its largest.
    if line.updates < _STEPS or min(line.shares[0], median(line.shares)) < MOST:
        return None
    return Finding(
        summary=f"{median(line.shares):.0%} of the {line.format} weights do not change in an "
        "update by this line: what it adds is less than half the distance to the next "
        f"{line.format} number",
        facts=(f"{counted(line.updates, 'update')}, of which some were examined",),
        change=(
            *((f"  {line.site.text}",) if line.site else ()),
            "+ # keep the weights in fp32, and compute the loss with a half-precision copy of them",
            f"+ # or under torch.autocast(device_type, {_TORCH[line.format]})",
        ),
        confidence=LIKELY,
        site=line.site,
    )


def _owners(evidence: Evidence) -> tuple[Owner, ...]:
    return evidence.of(ParameterLedger).owners


def _still(evidence: Evidence, owner: Owner) -> Finding | None:
    """Find parameters that have their first values at the end, although they have gradients."""
    if owner.steps < _STEPS or any(each.retained for each in evidence.samples):
        return None
    # Those that did move have been put back, for example by a load of the best weights.
    moved = {
        each.parameter
        for each in evidence.samples
        if each.optimizer == owner.number and each.relative_update
    }
    # The exact gradient of a bias before a norm is 0.
    noise = {
        each.parameter
        for each in evidence.precision.agreements
        if each.exact_norm < _EXACT * each.norm
    }
    parts = [
        each
        for each in evidence.of(ParameterLedger).parts
        if each.optimizer == owner.number and each.fate == STILL and each.size >= _WORTH
        if moved.isdisjoint(each.names) and not noise.issuperset(each.names)
    ]
    still = [each for each in parts if each.why in ("rounding", "eps")]
    half = [each for each in still if each.format in _TORCH]
    chosen = half or still
    # The gradient of a bias before a norm is 0 up to rounding, so a few parameters may stand still.
    if not half and sum(each.count for each in still) < MOST * owner.parameters:
        return None
    names = [name for each in chosen for name in each.names if name and name not in noise]
    forms = " and ".join(sorted({each.format for each in chosen}))
    optimizer = evidence.static.optimizers[owner.number]
    by_eps = all(each.why == "eps" for each in chosen)
    count = sum(each.count for each in chosen)
    return Finding(
        summary=f"{counted(count, f'{forms} parameter')} of {optimizer.kind} "
        f"{'has' if count == 1 else 'have'} gradients, but after {owner.steps} steps still the "
        "values of before: "
        + (
            f"its eps of {owner.eps:g} is above the largest gradient, {owner.largest:.3g}"
            if by_eps
            else f"the updates are less than half the distance to the next {forms} number"
        ),
        facts=(f"unchanged: {', '.join(names[:3])}",),
        change=with_eps(optimizer, "1e-8")
        if by_eps
        else _change(evidence, half[0].format)
        if half
        else (f"+ # a larger learning rate than {optimizer.settings.get('lr')}",),
        confidence=LIKELY,
        site=optimizer.site,
    )


def _large(evidence: Evidence) -> Finding | None:
    """Find a parameter in fp32 whose elements are so large that it loses its updates."""
    large = [each for each in _samples(evidence, "fp32") if each.size >= _LARGE]
    for name, number in dict.fromkeys((each.parameter, each.optimizer) for each in large):
        its = [each for each in large if (each.parameter, each.optimizer) == (name, number)]
        share = _lost_share(its)
        if share is None or len(its) < _SAMPLES:
            continue
        optimizer, size = evidence.static.optimizers[number], its[0].size
        return Finding(
            summary=f"{share:.0%} of the elements of {name} do not change in a step: they are "
            f"near {size:.2g}, so their updates are less than half the distance to the next fp32 "
            f"number, {2.0 ** (math.frexp(size)[1] - 24):.2g}",
            facts=(f"measured in {counted(len(its), 'step')}",),
            change=(
                "+ # train the difference to the first values, which is small, and add these in",
                "+ # the forward pass; or keep this parameter in torch.float64",
            ),
            confidence=LIKELY,
            site=optimizer.site,
            module=name.rpartition(".")[0],
        )
    return None


def _samples(evidence: Evidence, format_: str) -> list[Sample]:
    """Return the samples of parameters in one format whose updates a step should not lose."""
    rates = {
        (each.iteration, each.optimizer): each.learning_rate for each in evidence.numbers.steps
    }
    return [
        each
        for each in evidence.samples
        if each.format == format_
        and each.gradient_zeros < 1
        and not each.retained
        and rates.get((each.iteration, each.optimizer), 1.0) > 0
    ]


def _lost_share(samples: list[Sample]) -> float | None:
    """Return which share of the elements does not change; None if most of them do."""
    # After convergence, parameters change little, so the first steps must also show lost updates.
    first = samples[0].iteration if samples else 0
    early = [each for each in samples if each.iteration < first + EARLY]
    if not early or median(each.unchanged for each in early) < MOST:
        return None
    share = median(each.unchanged for each in samples)
    return share if share >= MOST else None


def _lost(evidence: Evidence, format_: str) -> Finding | None:
    """Find lost updates of the parameters in one half-precision format."""
    samples = _samples(evidence, format_)
    share = _lost_share(samples)
    if share is None:
        return None
    optimizers = evidence.static.optimizers
    worst = max(samples, key=lambda each: each.unchanged)
    cast = _cast(evidence, format_)
    made = optimizers[worst.optimizer].site if worst.optimizer < len(optimizers) else None
    # The updates from subnormal fp16 gradients are lost in any case.
    vanishing = median(each.gradient_subnormal for each in samples) >= MOST
    return Finding(
        summary=f"{share:.0%} of the {format_} parameters with gradients do not change in a "
        f"step: their updates are less than half the distance to the next {format_} number",
        facts=(
            f"{worst.parameter}: {worst.unchanged:.0%} unchanged in step {worst.iteration}",
            f"measured {counted(len(samples), 'time')}, on a few parameters in some of the steps",
        ),
        change=_change(evidence, format_),
        confidence=LIKELY if vanishing and worst.gradient_format == "fp16" else CERTAIN,
        site=cast.site if cast else made,
        module=worst.parameter.rpartition(".")[0],
    )


def _cast(evidence: Evidence, format_: str) -> HalfCast | None:
    """Return the cast of the trained model to a format, if one line makes it."""
    found = [each for each in evidence.casts if each.format == format_ and each.is_trained]
    return found[0] if len({each.site for each in found}) == 1 else None


def _change(evidence: Evidence, format_: str) -> tuple[str, ...]:
    cast = _cast(evidence, format_)
    changed = in_fp32(cast.text, format_) if cast else None
    first: tuple[str, ...] = (
        f"- model.to({_TORCH[format_]})  # or another cast of the parameters to {format_}",
        "+ # keep the parameters in fp32",
    )
    if cast and changed:
        first = difference(cast.text, changed)
    device = evidence.environment.devices[0] if evidence.environment.devices else "cuda"
    return (
        *first,
        "+ # run the forward pass and the loss inside",
        f'+ # `with torch.autocast("{device}", {_TORCH[format_]}):`',
        *(("+ # and scale the loss with torch.amp.GradScaler;",) if format_ == "fp16" else ()),
        f"+ # or train with halfstep.Engine and its recipe {_OTHERWISE[format_]}",
    )


def _trial(_: Evidence) -> tuple[Variation, Variation]:
    """Return steps as they are, and steps of an optimizer that keeps fp32 weights."""
    return Variation(), Variation(exact=True)


RULE = Rule(
    code="UPDATES_ROUNDED_AWAY",
    name="weight updates lost to rounding",
    rows=(28,),
    citations=("pytorch/ao#1124", "pytorch/torchtune#2254"),
    needs=frozenset(
        {
            *("samples", "numbers", "static", "casts", "environment", "parameters", "precision"),
            "own updates",
        }
    ),
    judge=judge,
    harmless=True,
    trial=_trial,
)
