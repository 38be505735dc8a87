"""The loop divides gradients by the loss scale in fp16, where small ones become 0 again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.unscaling import HalfUnscalings
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_MOST = 0.3  # of the elements
_SOME = 0.05


def judge(evidence: Evidence) -> Finding | None:
    """Find divisions that turn many elements of fp16 gradients into 0."""
    for line in evidence.of(HalfUnscalings).lines:
        if not line.examined or line.lost < _SOME * line.examined:
            continue
        share = line.lost / line.examined
        return Finding(
            summary=f"gradients are divided by {line.divisor:g} while they are in fp16, so "
            f"{share:.0%} of their elements become 0: the loss scale is in vain",
            facts=(
                (
                    f"{counted(line.calls, 'division')}; {line.lost} of "
                    f"{counted(line.examined, 'element')} other than 0 became 0 in the examined "
                    "ones"
                ),
                "the smallest number above 0 in fp16 is 6e-08",
            ),
            change=(
                f"- {line.site.text if line.site else 'gradient = (p.grad / scale).float()'}",
                "+ # in fp32 first, then divided:",
                "+ gradient = p.grad.float() / scale",
            ),
            confidence=CERTAIN if share >= _MOST else LIKELY,
            site=line.site,
        )
    return None


RULE = Rule(
    code="UNSCALED_IN_HALF",
    name="gradients divided by the loss scale in fp16",
    rows=(51,),
    citations=("arXiv:1710.03740, section 3.2",),
    needs=frozenset({"unscaling"}),
    judge=judge,
    harmless=True,
)
