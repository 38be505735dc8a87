"""Running statistics, such as those of BatchNorm, contain the inf or NaN of a skipped step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_ENGINE = (
    "+ # halfstep.Engine restores running statistics when a step is skipped. Without",
    "+ # Engine, leave out the overflowing batch and call reset_running_stats() once",
)
_BY_HAND = (
    "+ # where the module updates these buffers, leave out what is not finite:",
    "+ if torch.isfinite(inputs).all():",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find non-finite running statistics in a model with finite parameters after a skipped step."""
    skips = 0 if evidence.numbers.left_out else evidence.numbers.skips
    losses = [each.loss for each in evidence.numbers.steps if each.loss is not None]
    # After an inf variance, predictions of an evaluation are finite, and no longer those of the
    # data. Statistics of the step that ends the training harm nothing.
    goes_on = bool(evidence.evaluation.calls and losses) and math.isfinite(losses[-1])
    if not (skips or evidence.evaluation.bad or goes_on):
        return None
    skipped = (
        f"skipped steps: {skips}"
        if skips
        else "no scaler skipped a step, so the loop ran this forward pass without a step"
    )
    models = evidence.static.models
    if any(model.bad_parameters for model in models):
        return None
    # Without a skipped step, the variance of a finite batch may have overflowed a half format.
    explained = [] if skips else [name for model in models for name in model.overflowed_variances]
    for model in models:
        norms = {each.path for each in model.modules}
        bad = [
            each
            for each in model.bad_statistics
            # Other modules may use inf for something else, unless it reaches a prediction.
            if each not in explained and (_path(each) in norms or evidence.evaluation.bad)
        ]
        if not bad:
            continue
        return Finding(
            summary="a skipped step left inf or NaN in running statistics: the parameters are not "
            "changed, but the forward pass has already updated the buffers",
            facts=(
                f"not finite: {', '.join(bad[:3])}; every parameter is finite",
                skipped,
                *_overflow(evidence),
                (
                    f"{evidence.evaluation.bad} of {evidence.evaluation.calls} calls in evaluation "
                    "gave NaN"
                ),
            ),
            change=_ENGINE if _path(bad[0]) in norms else _BY_HAND,
            module=_path(bad[0]),
        )
    return None


def _path(buffer: str) -> str:
    """Return the path of the module that has a buffer."""
    return buffer.rpartition(".")[0]


def _overflow(evidence: Evidence) -> tuple[str, ...]:
    """Return a fact on the operator that made the skipped step bad, if it is known."""
    for birth in evidence.births:
        if birth.culprit and birth.overflowed and birth.inputs:
            fact = f"{birth.appears}: {birth.reach}, above the maximum of {birth.output.format}"
            return (fact,)
    return ()


RULE = Rule(
    code="NORM_STATISTICS_POISONED",
    name="running statistics poisoned by a skipped step",
    rows=(16,),
    citations=("pytorch/pytorch#115500", "pytorch/pytorch#58392"),
    needs=frozenset({"static", "numbers", "evaluation", "births"}),
    judge=judge,
)
