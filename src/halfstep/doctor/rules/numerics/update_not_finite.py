"""The optimizer turns finite gradients into inf or NaN, for example at a learning rate of inf."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.remedies import with_eps
from halfstep.doctor.verdict import CERTAIN, LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence, StepNumbers

_PARAMETER = "parameter "
_EPS = "1e-8"


def judge(evidence: Evidence) -> Finding | None:
    """Find a parameter that became inf or NaN in an update with finite gradients."""
    bad, before = evidence.numbers.first_bad, evidence.numbers.before_bad
    birth = next((each for each in evidence.births if each.culprit), None)
    if bad is None or before is None or birth is None or birth.iteration != bad.iteration:
        return None
    if not birth.output.name.startswith(_PARAMETER):
        return None
    norm = before.gradient_norm
    optimizer = evidence.static.optimizers[bad.optimizer]
    name = birth.output.name.removeprefix(_PARAMETER)
    cause, change, confidence = _cause(evidence, before, birth)
    return Finding(
        summary=f"step {before.iteration} of {optimizer.kind} makes {birth.value} of finite "
        f"gradients: {name} contains {birth.value} after it{cause}",
        facts=(
            *(
                (f"norm of the gradients that it was given: {norm:.3g}",)
                if norm is not None
                else ()
            ),
            *((f"learning rate: {before.learning_rate:g}",) if _has_rate(evidence, before) else ()),
            f"format of {name}: {birth.output.format}; of the optimizer's state: "
            + (", ".join(sorted({*optimizer.state_formats.values()})) or "none"),
        ),
        change=change,
        confidence=confidence,
        site=optimizer.site,
        module=name.rpartition(".")[0],
    )


def _cause(
    evidence: Evidence, before: StepNumbers, birth: Birth
) -> tuple[str, tuple[str, ...], str]:
    """Return the reason as the end of the summary ("" if unknown), the change, the confidence."""
    optimizer = evidence.static.optimizers[before.optimizer]
    if _has_rate(evidence, before) and not math.isfinite(before.learning_rate):
        rate = "NaN" if math.isnan(before.learning_rate) else "inf"
        change: tuple[str, ...] = (
            "+ # the schedule divides by 0, or takes a power that overflows; print what it gives:",
            f"+ print(optimizer.param_groups[0]['lr'])  # {rate} in step {before.iteration}",
        )
        return f", because the learning rate is {rate}", change, CERTAIN
    if optimizer.settings.get("eps") == 0:
        change = with_eps(optimizer, _EPS)
        return "; its eps is 0, so where a gradient is 0, the update is 0/0", change, LIKELY
    if birth.output.format == "fp16":
        change = (
            "+ # update fp32 master weights, with an optimizer state in fp32:",
            '+ engine = halfstep.Engine(model, optimizer, recipe="o2")',
        )
        return "", change, POSSIBLE
    return "", ("+ # inspect the update: which of its numbers divides, or overflows?",), POSSIBLE


def _has_rate(evidence: Evidence, step: StepNumbers) -> bool:
    """Return whether any learning rate of the step's optimizer is known; NaN means unknown."""
    return any(
        not math.isnan(each.learning_rate)
        for each in evidence.numbers.steps
        if each.optimizer == step.optimizer
    )


RULE = Rule(
    code="UPDATE_NOT_FINITE",
    name="an update that turns finite gradients into inf or NaN",
    rows=(49,),
    citations=("pytorch/pytorch#1767", "mlcommons/hpc#27"),
    needs=frozenset({"static", "numbers", "births"}),
    judge=judge,
    explains=("SCHEDULE_MOVES_OVER_SKIPS", "NORM_STATISTICS_POISONED"),
)
