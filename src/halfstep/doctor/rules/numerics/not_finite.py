"""An operator returns inf or NaN, and no other rule explains it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence, StepNumbers


_SEARCH = 4  # skipped steps in a row
_APPLIED = "the optimizer applies it to the weights"
_STAYS_FINITE = "the parameters are finite all the same"
_LEFT_OUT = "the step is skipped; the loss scale is not the cause"
_SKIP = (
    "+ # Until the cause is found, skip such steps: call optimizer.step() only if the norm that",
    "+ # torch.nn.utils.clip_grad_norm_() returns is finite.",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find the operator that made inf or NaN in a step that a lower loss scale does not fix."""
    births = [each for each in evidence.births if each.culprit and each.phase_step == "training"]
    bad = evidence.numbers.first_bad
    if bad is None or bad.skipped:
        return _skipped(births, bad, evidence)
    if not births:
        return _made_somewhere(bad)
    smaller = any(each.name == "smaller loss" and each.finite for each in evidence.replays)
    if smaller and evidence.stays_finite:
        return None  # The optimizer skips bad steps while it adapts its own loss scale.
    then = _STAYS_FINITE if evidence.stays_finite else _APPLIED
    return _made_by(births[0], evidence, then)


def _skipped(births: list[Birth], bad: StepNumbers | None, evidence: Evidence) -> Finding | None:
    """Return a finding on a skipped step, unless the loss scale is the cause."""
    lower = [each for each in evidence.replays if each.name == "lower scale" and not each.note]
    in_loss = bad is not None and _is_bad(bad.loss)
    if (
        not births
        or not (in_loss or lower or evidence.numbers.left_out)
        or any(each.finite for each in lower)
        or _settles_below_one(evidence)
    ):
        return None
    return _made_by(births[0], evidence, _LEFT_OUT)


def _settles_below_one(evidence: Evidence) -> bool:
    """Return whether an optimizer skipped steps until its loss scale was low enough, below 1."""
    run: dict[int, int] = {}
    for each in evidence.numbers.steps:
        if each.skipped:
            run[each.optimizer] = run.get(each.optimizer, 0) + 1
            continue
        if run.get(each.optimizer, 0) >= _SEARCH and each.scale is not None and each.scale < 1:
            return True
        run[each.optimizer] = 0
    return False


def _made_somewhere(bad: StepNumbers) -> Finding:
    """Return a finding on a step without a replay that shows the operator."""
    what = f"the loss is {bad.loss}" if _is_bad(bad.loss) else "a gradient is inf or NaN"
    return Finding(
        summary=f"in step {bad.iteration}, {what}, and the optimizer applies the gradients to the "
        "weights; doctor could not find the operator that is the cause",
        facts=(),
        change=_SKIP,
        confidence=POSSIBLE,
    )


def _is_bad(loss: float | None) -> bool:
    return loss is not None and not math.isfinite(loss)


def _made_by(birth: Birth, evidence: Evidence, then: str) -> Finding:
    is_finite = evidence.exact_is_finite(birth.iteration)
    comparison: tuple[str, ...] = ()
    if is_finite is not None:
        comparison = (
            "the same step in fp32 is finite: the cause is the precision"
            if is_finite
            else "the same step in fp32 is not finite either: the cause is not the precision but "
            "the data, the learning rate or the formula",
        )
    maker = birth.called if birth.op else birth.output.name or "the input"
    sizes = [f"{each.largest:.4g}" for each in birth.inputs if each.largest is not None]
    written = sum(each.infs for each in birth.inputs) if birth.on_purpose else 0
    if written:
        fact = (
            f"its arguments contain {counted(written, 'infinite number')} that the program itself "
        )
        comparison += (f"{fact}writes, as in a mask or at the start of a maximum",)
    read = [f"largest magnitudes in the arguments of {maker}: {', '.join(sizes)}"] if sizes else []
    return Finding(
        summary=f"in step {birth.iteration}, {birth.value} first appears in "
        f"{maker} ({birth.phase}), and {then}",
        facts=(
            birth.appears,
            *comparison,
            *read,
        ),
        change=(
            "+ # look at the batch of this step and at the arguments of the operator in this line.",
            *(_SKIP if then == _APPLIED else ()),
        ),
        confidence=POSSIBLE,
        site=birth.user_site,
        module=birth.module,
    )


RULE = Rule(
    code="NOT_FINITE",
    name="inf or NaN from another cause",
    rows=(43, 49),
    citations=("pytorch/pytorch#160016",),
    needs=frozenset({"static", "numbers", "births", "replays"}),
    judge=judge,
    symptom=True,
)
