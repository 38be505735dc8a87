"""The loss of an evaluation is computed in half precision, outside autocast, which harms it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import argument
from halfstep.doctor.signals.values.repeated_losses import RepeatedLoss, RepeatedLosses
from halfstep.doctor.verdict import POSSIBLE, Finding, Rule
from halfstep.formats import FORMATS
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.sites import Site

EQUAL = 3
SHARE = 1 / 3


def judge(evidence: Evidence) -> Finding | None:
    """Find half-precision results of evaluation that overflow, or that do not tell steps apart."""
    overflows = [each for each in evidence.overflows if each.evaluation]
    if any(each.makers for each in evidence.inputs):
        return None  # A training step reads the result: it is a target or a weight.
    if not overflows:
        return next(map(_rounded, filter(_repeats, evidence.of(RepeatedLosses).lines)), None)
    first = overflows[0]
    return Finding(
        summary=f"{first.name} is computed in {first.format}, outside autocast, and is not finite; "
        f"in fp32 it is {first.exact:.4g}. Under autocast it would be computed in fp32",
        facts=(f"this happened {counted(first.count, 'time')}, with gradients disabled",),
        change=_change(first.site),
        site=first.site,
    )


def _repeats(loss: RepeatedLoss) -> bool:
    return loss.equal >= EQUAL and loss.equal >= SHARE * loss.count


def _rounded(loss: RepeatedLoss) -> Finding:
    digits = FORMATS[loss.format].mantissa_bits + 1
    return Finding(
        summary=f"{loss.name} is computed in {loss.format}, outside autocast, and is rounded to "
        f"{digits} significant bits: {loss.equal} of {loss.count} losses are equal to that of the "
        "evaluation before, although the weights have changed. What reads this loss, such as "
        "early stopping or a schedule, sees no improvement there",
        facts=("two evaluations in fp32 hardly ever have the same loss",),
        change=_change(loss.site),
        confidence=POSSIBLE,
        site=loss.site,
    )


def _change(line: Site | None) -> tuple[str, ...]:
    text = line.text if line is not None else ""
    outputs = argument(text, None, 2, 0)
    if outputs and text.count(f"({outputs},") == 1:
        return (
            f"- {text}",
            f"+ {text.replace(f'({outputs},', f'({outputs}.float(),')}  # or under autocast",
        )
    return (
        f"- {text or 'loss = criterion(outputs, labels)'}",
        "+ loss = criterion(outputs.float(), labels)  # or inside the autocast block",
    )


RULE = Rule(
    code="EVALUATION_LOSS_IN_HALF",
    name="an evaluation loss outside autocast",
    rows=(15,),
    citations=("huggingface/pytorch-image-models#1586", "hiyouga/LLaMA-Factory#3474"),
    needs=frozenset({"inputs", "overflows", "repeated losses"}),
    judge=judge,
    harmless=True,
)
