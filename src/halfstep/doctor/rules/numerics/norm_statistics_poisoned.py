"""BatchNorm's running statistics contain the inf or NaN of a step that the scaler skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find finite parameters and non-finite buffers after a skipped step."""
    if evidence.numbers.skips == 0:
        return None
    for model in evidence.static.models:
        if not model.bad_buffers or model.bad_parameters:
            continue
        return Finding(
            summary="a skipped step left inf or NaN in running statistics: the scaler protects "
            "the parameters, but the forward pass has already updated the buffers",
            facts=(
                f"not finite: {', '.join(model.bad_buffers[:3])}; every parameter is finite",
                f"skipped steps: {evidence.numbers.skips}",
                (
                    f"{evidence.evaluation.bad} of {evidence.evaluation.calls} calls in evaluation "
                    "gave NaN"
                ),
            ),
            change=(
                "+ # halfstep.Engine restores running statistics when a step is skipped. Without",
                "+ # Engine, leave out the overflowing batch and call reset_running_stats() once",
            ),
            module=model.bad_buffers[0].rpartition(".")[0],
        )
    return None


RULE = Rule(
    code="NORM_STATISTICS_POISONED",
    name="running statistics poisoned by a skipped step",
    rows=(16,),
    citations=("pytorch/pytorch#115500", "pytorch/pytorch#58392"),
    needs=frozenset({"static", "numbers", "evaluation"}),
    judge=judge,
)
