"""The target of a CTC loss is longer than its input, so that no alignment exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.alignments import Alignment, Alignments
from halfstep.doctor.verdict import CERTAIN, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

SHARE = 0.2
SAMPLES = 8
_NEEDS = "a target needs one time step for each label, and one more between equal labels"


def judge(evidence: Evidence) -> Finding | None:
    """Find a CTC loss that is inf for finite log-probabilities, or that leaves samples out."""
    return _infinite(evidence) or next(
        (_left_out(each) for each in evidence.of(Alignments).lines if _leaves_many_out(each)), None
    )


def _leaves_many_out(line: Alignment) -> bool:
    # A few samples that are left out are what zero_infinity is for.
    return line.ignores and line.samples >= SAMPLES and line.too_long >= SHARE * line.samples


def _left_out(line: Alignment) -> Finding:
    return Finding(
        summary=f"{line.too_long} of {line.samples} examined targets need more time steps than "
        "their input has; zero_infinity=True hides it: these samples have neither a loss nor a "
        "gradient, so the model does not learn from them, and cannot output them",
        facts=(_NEEDS,),
        change=("+ # give the model more time steps, for example with a smaller stride",),
        confidence=CERTAIN if line.too_long == line.samples else POSSIBLE,
        site=line.site,
    )


def _infinite(evidence: Evidence) -> Finding | None:
    for birth in evidence.births:
        if not birth.culprit or not birth.op.endswith("_ctc_loss") or birth.phase != "forward":
            continue
        if birth.inputs[0].infs or birth.inputs[0].nans:
            continue  # A log-probability of -inf alone makes the loss of its label inf.
        losses, infs = birth.output.shape[0] if birth.output.shape else 1, birth.output.infs
        return Finding(
            summary=f"ctc_loss is inf for {infs} of {counted(losses, 'sample')}: the input has "
            "fewer time steps than the target needs",
            facts=(
                birth.appears,
                _NEEDS,
            ),
            change=(
                "+ # count such samples as 0: nn.CTCLoss(zero_infinity=True)",
                "+ # or give the model more time steps, for example with a smaller stride",
            ),
            site=birth.user_site,
            module=birth.module,
        )
    return None


RULE = Rule(
    code="CTC_TARGET_TOO_LONG",
    name="a CTC target longer than its input",
    rows=(34,),
    citations=("FangShancheng/ABINet#65", "ypwhs/captcha_break#29"),
    needs=frozenset({"births", "alignments"}),
    judge=judge,
    explains=("GRADIENTS_VANISH", "NO_GRADIENTS"),
)
