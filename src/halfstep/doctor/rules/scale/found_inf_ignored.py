"""A fused optimizer should skip non-finite steps itself, but applies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find non-finite parameters after a step that a fused optimizer should have skipped."""
    bad = [name for model in evidence.static.models for name in model.bad_parameters]
    told = {each.optimizer for each in evidence.numbers.steps if each.skipped}
    for number in sorted(told):
        optimizer = evidence.static.optimizers[number]
        if not (optimizer.skips_itself and bad) or evidence.loop.count("step", by_scaler=False):
            continue
        return Finding(
            summary=f"the optimizer {optimizer.kind} should itself skip steps with inf or NaN, but "
            "it applied such a step: parameters are now non-finite",
            facts=(
                f"{counted(evidence.numbers.skips, 'step')} had found_inf set",
                f"not finite: {', '.join(bad[:3])}",
                f"torch {evidence.environment.torch}",
            ),
            change=(
                f"- {optimizer.kind}(..., fused=True)",
                f"+ {optimizer.kind}(...)  # or a torch version whose fused kernel reads found_inf",
            ),
        )
    return None


RULE = Rule(
    code="FOUND_INF_IGNORED",
    name="a fused optimizer that ignores overflow",
    rows=(45,),
    citations=("pytorch/pytorch#95847",),
    needs=frozenset({"static", "numbers", "loop", "environment"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH",),
)
