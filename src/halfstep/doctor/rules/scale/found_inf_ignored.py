"""A fused optimizer should skip non-finite steps itself, but applies them."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, StepNumbers


def judge(evidence: Evidence) -> Finding | None:
    """Find non-finite weights or moments after a step that a fused optimizer should skip."""
    # Where a wrapper keeps found_inf from the optimizer, the step does not count as skipped.
    bad = [name for model in evidence.static.models for name in model.bad_parameters]
    steps = evidence.numbers.steps
    told = {each.optimizer for each in steps if each.skipped or _applied(each)}
    # Weights with inf or NaN from the start are no effect of a step.
    told &= {each.optimizer for each in steps if each.is_finite}
    for number in sorted(told):
        optimizer = evidence.static.optimizers[number]
        # Its update may keep parameters finite, for example if it is the sign of a moment.
        wrong = bad or [f"{each} in the state" for each in optimizer.bad_state]
        if not (optimizer.skips_itself and wrong) or evidence.loop.count("step", by_scaler=False):
            continue
        return Finding(
            summary=f"the optimizer {optimizer.kind} should itself skip steps with inf or NaN, but "
            f"it applied such a step: {'parameters are' if bad else 'its state is'} now non-finite",
            facts=(
                _seen(steps, number),
                f"not finite: {', '.join(wrong[:3])}",
                f"torch {evidence.environment.torch}",
            ),
            change=(
                f"- {optimizer.kind}(..., fused=True)",
                f"+ {optimizer.kind}(...)",
                "+ # or a torch version whose fused kernel reads found_inf; a wrapper must pass",
                "+ # the attributes found_inf and grad_scale on to the optimizer",
            ),
        )
    return None


def _applied(step: StepNumbers) -> bool:
    norm = step.gradient_norm
    return step.scale is not None and not step.skipped and norm is not None and not isfinite(norm)


def _seen(steps: tuple[StepNumbers, ...], number: int) -> str:
    mine = [each for each in steps if each.optimizer == number]
    applied = sum(map(_applied, mine))
    if applied:
        return f"{counted(applied, 'step')} under the scaler had gradients with inf or NaN"
    return f"{counted(sum(each.skipped for each in mine), 'step')} had found_inf set"


RULE = Rule(
    code="FOUND_INF_IGNORED",
    name="a fused optimizer that ignores overflow",
    rows=(45,),
    citations=("pytorch/pytorch#95847",),
    needs=frozenset({"static", "numbers", "loop", "environment"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH", "NOT_FINITE"),
)
