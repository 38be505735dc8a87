"""The loss scale keeps falling, because of an overflow that does not depend on the scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence, StepNumbers
    from halfstep.doctor.record.sites import Site

SKIPS = 4


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss scale that falls although lowering it does not remove the overflow."""
    return _by_scaler(evidence) or _by_hand(evidence)


def _by_scaler(evidence: Evidence) -> Finding | None:
    """Find consecutive skipped steps that are not finite even without a loss scale."""
    numbers = evidence.numbers
    if numbers.longest_run_of_skips < SKIPS or not numbers.steps[-1].skipped:
        return None
    if numbers.smallest_scale is None:  # skipped by the trainer, without a loss scale
        return None
    unscaled = [each for each in evidence.replays if each.name == "lower scale" and not each.note]
    enough = [each.scale for each in unscaled if each.finite]
    if enough:
        if numbers.smallest_scale >= max(enough):
            return None
        fact = (
            "doctor repeats the step with finite gradients, so inf or NaN comes from a part that "
            "it does not record, such as a hook of a tensor"
        )
    elif unscaled:
        fact = f"the same step at a loss scale of {unscaled[-1].scale:g} is not finite"
    elif all(_has_no_finite_loss(each) for each in numbers.steps[-SKIPS:]):
        fact = f"the loss of the last {SKIPS} steps is not finite before it is scaled"
    else:
        return None
    return _finding(
        evidence,
        f"{numbers.longest_run_of_skips} steps in a row were skipped, the last one at a loss "
        f"scale of {numbers.steps[-1].scale:g}. Even without a loss scale, the step is not finite, "
        "so no loss scale is small enough",
        fact,
        None,
    )


def _has_no_finite_loss(step: StepNumbers) -> bool:
    return step.loss is not None and not math.isfinite(step.loss)


def _by_hand(evidence: Evidence) -> Finding | None:
    """Find a loss scale in the loop's own code that fell below 1 while no step was made."""
    plain = [each for each in evidence.replays if each.name == "plain" and not each.note]
    if not plain or plain[-1].finite:
        return None
    for scale in evidence.own_scales:
        if scale.drops >= SKIPS and not scale.steps and scale.last < 1:
            return _finding(
                evidence,
                f"the loop lowered its own loss scale {counted(scale.drops, 'time')}, and made no "
                f"step since the first decrease: at a scale of {scale.last:g}, the gradients are "
                "still not finite, so no scale is small enough",
                f"the same step at a loss scale of {scale.last:g} is not finite",
                scale.site,
            )
    return None


def _finding(evidence: Evidence, summary: str, fact: str, site: Site | None) -> Finding:
    births: list[Birth] = [each for each in evidence.births if each.culprit]
    culprit = "the operator named above" if births else "the operator that gives inf or NaN"
    where = [
        f"{each.value} first appears in {each.called if each.op else 'the input'} ({each.phase}), "
        f"{each.where}"
        for each in births[:1]
    ]
    return Finding(
        summary=summary,
        facts=(*where, fact),
        change=(
            f"+ # fix {culprit}; the loss scale is not the cause",
            *_in_fp32(births[:1]),
        ),
        confidence=LIKELY,
        site=births[0].user_site if births else site,
        module=births[0].module if births else "",
    )


def _in_fp32(births: list[Birth]) -> tuple[str, ...]:
    """Return a change for an overflow of fp16."""
    if not births or births[0].output.format != "fp16" or not births[0].overflowed:
        return ()
    return (
        f"+ # its result is {births[0].exact:.4g}, above fp16's maximum of 65504: use bf16,",
        "+ # or compute the line in fp32, with its inputs cast by .float(), inside this block:",
        "+ with torch.autocast(device_type, enabled=False):",
    )


RULE = Rule(
    code="SCALE_COLLAPSED",
    name="a loss scale that keeps falling",
    rows=(43,),
    citations=("pytorch/pytorch#99640", "facebookresearch/fairseq#1529"),
    needs=frozenset({"numbers", "replays", "births", "own_scales"}),
    judge=judge,
    symptom=True,
    explains=("NOT_FINITE",),
)
