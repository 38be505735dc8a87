"""Parameters are inf or NaN after an update with finite gradients, for example at a rate of inf."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.remedies import with_eps
from halfstep.doctor.verdict import CERTAIN, LIKELY, POSSIBLE, Finding, Rule
from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence, Numbers, StepNumbers

_PARAMETER = "parameter "
_EPS = "1e-8"


def judge(evidence: Evidence) -> Finding | None:
    """Find a parameter that became inf or NaN after an update with finite gradients."""
    bad, before = evidence.numbers.first_bad, _update(evidence.numbers)
    birth = next((each for each in evidence.births if each.culprit), None)
    if bad is None or before is None or birth is None or birth.iteration != bad.iteration:
        return None
    if before.gradient_norm is None or not birth.output.name.startswith(_PARAMETER):
        return None
    optimizer = evidence.static.optimizers[before.optimizer]
    name = birth.output.name.removeprefix(_PARAMETER)
    cause, change, confidence = _cause(evidence, before, birth, before.gradient_norm)
    return Finding(
        summary=f"{name} contains {birth.value} after step {before.iteration} of "
        f"{optimizer.kind}, although the gradients of this step are finite{cause}",
        facts=(
            f"norm of the gradients: {before.gradient_norm:.3g}",
            *((f"learning rate: {before.learning_rate:g}",) if _has_rate(evidence, before) else ()),
            f"format of {name}: {birth.output.format}; of the optimizer's state: "
            + (", ".join(sorted({*optimizer.state_formats.values()})) or "none"),
        ),
        change=change,
        confidence=confidence,
        site=optimizer.site,
        module=name.rpartition(".")[0],
    )


def _update(numbers: Numbers) -> StepNumbers | None:
    """Return the last update before the bad step of the optimizer that has the bad parameters.

    Returns:
        The step; None if several optimizers have such parameters, or none has.
    """
    if len(numbers.bad_owners) != 1:
        return None
    return next((each for each in numbers.before_bad if each.optimizer in numbers.bad_owners), None)


def _cause(
    evidence: Evidence, before: StepNumbers, birth: Birth, norm: float
) -> tuple[str, tuple[str, ...], str]:
    """Return the reason as the end of the summary ("" if unknown), the change, the confidence."""
    optimizer, form = evidence.static.optimizers[before.optimizer], birth.output.format
    rate = before.learning_rate
    if _has_rate(evidence, before) and not math.isfinite(rate):
        value = "NaN" if math.isnan(rate) else "inf"
        seen = f"{value} in step {before.iteration}"
        change: tuple[str, ...] = (
            "+ # the schedule divides by 0, or takes a power that overflows; print what it gives:",
            f"+ print([each['lr'] for each in optimizer.param_groups])  # {seen}",
        )
        return f": a learning rate is {value}", change, CERTAIN
    if optimizer.settings.get("eps") == 0:
        change = with_eps(optimizer, _EPS)
        return "; its eps is 0, so where a gradient is 0, the update is 0/0", change, LIKELY
    # Optimizers with an eps divide the gradient by its size.
    if form in FORMATS and "eps" not in optimizer.settings and rate * norm > FORMATS[form].max:
        change = (f"- lr={rate:g}", f"+ # a smaller lr: an update is as large as lr * {norm:.3g}")
        return f": learning rate times gradient is above the maximum of {form}", change, LIKELY
    if form == "fp16":
        change = (
            "+ # update fp32 master weights, with an optimizer state in fp32:",
            '+ engine = halfstep.Engine(model, optimizer, recipe="o2")',
        )
        return "", change, POSSIBLE
    change = (
        f"+ # print the parameter before and after optimizer.step() in step {before.iteration}:",
        "+ # either the update divides or overflows, or other code that writes the parameter does",
    )
    return "", change, POSSIBLE


def _has_rate(evidence: Evidence, step: StepNumbers) -> bool:
    """Return whether any learning rate of the step's optimizer is known; NaN means unknown."""
    return any(
        not math.isnan(each.learning_rate)
        for each in evidence.numbers.steps
        if each.optimizer == step.optimizer
    )


RULE = Rule(
    code="UPDATE_NOT_FINITE",
    name="inf or NaN after an update with finite gradients",
    rows=(49,),
    citations=("pytorch/pytorch#1767", "mlcommons/hpc#27"),
    needs=frozenset({"static", "numbers", "births"}),
    judge=judge,
    explains=(
        "SCHEDULE_MOVES_OVER_SKIPS",
        "NORM_STATISTICS_POISONED",
        "PARAMETERS_WITHOUT_OPTIMIZER",
    ),
)
