"""Half-precision weights lose updates that are too small for their format."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

MOST = 0.5
EARLY = 64

_CHANGES = {
    "fp16": (
        "- model.half()  # or another cast of the parameters to fp16",
        "+ # fp32 parameters under torch.autocast, or fp32 master weights:",
        '+ engine = halfstep.Engine(model, optimizer, recipe="o2")',
    ),
    "bf16": (
        "- model.bfloat16()  # or another cast of the parameters to bf16",
        "+ # fp32 parameters under torch.autocast, or stochastic rounding of updates:",
        '+ engine = halfstep.Engine(model, optimizer, recipe="bf16-sr")',
    ),
}


def judge(evidence: Evidence) -> Finding | None:
    """Find half-precision parameters whose elements mostly do not change despite gradients."""
    return next(filter(None, (_lost(evidence, each) for each in _CHANGES)), None)


def _lost(evidence: Evidence, format_: str) -> Finding | None:
    """Find lost updates of the parameters in one half-precision format."""
    rates = {
        (each.iteration, each.optimizer): each.learning_rate for each in evidence.numbers.steps
    }
    samples = [
        each
        for each in evidence.samples
        if each.format == format_
        and each.gradient_zeros < 1
        and not each.retained
        and rates.get((each.iteration, each.optimizer), 1.0) > 0
    ]
    # After convergence, parameters change little, so the first steps must also show lost updates.
    first = samples[0].iteration if samples else 0
    early = [each for each in samples if each.iteration < first + EARLY]
    if not early or median(each.unchanged for each in early) < MOST:
        return None
    if (share := median(each.unchanged for each in samples)) < MOST:
        return None
    optimizers = evidence.static.optimizers
    worst = max(samples, key=lambda each: each.unchanged)
    # The updates from subnormal fp16 gradients are lost in any case.
    vanishing = median(each.gradient_subnormal for each in samples) >= MOST
    return Finding(
        summary=f"{share:.0%} of the {format_} parameters with gradients do not change in a "
        f"step: their updates are less than half the distance to the next {format_} number",
        facts=(
            f"{worst.parameter}: {worst.unchanged:.0%} unchanged in step {worst.iteration}",
            f"measured on {counted(len(samples), 'sample')} of parameters",
        ),
        change=_CHANGES[format_],
        confidence=LIKELY if vanishing and worst.gradient_format == "fp16" else CERTAIN,
        site=optimizers[worst.optimizer].site if worst.optimizer < len(optimizers) else None,
        module=worst.parameter.rpartition(".")[0],
    )


RULE = Rule(
    code="UPDATES_ROUNDED_AWAY",
    name="weight updates lost to rounding",
    rows=(28,),
    citations=("pytorch/ao#1124", "pytorch/torchtune#2254"),
    needs=frozenset({"samples", "numbers", "static"}),
    judge=judge,
    harmless=True,
)
